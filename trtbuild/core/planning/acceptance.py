"""Accepts calibrations, traces and partitions that other machines made. The rules for traces hold for calibrations, too.

Such a result is used if this machine cannot make it: a machine cannot trace a model if torch or a related package is
missing, or if the lock file names another version. A partition that a lock file names is used even if this machine could
make it.

Rules
1. The versions of torch and other installed packages, and the files that imports find, may differ from those of this
   machine. This machine may lack the libraries of the model, or have other versions of them. The later steps are looked up
   with the versions in the trace's record. All other parts of the trace's recipe must be the same on this machine now: the
   declared parts, which are known before user code runs, and the other dependencies, such as files.
2. A lock file names the trace of a model by key. Each dependency of that trace, except distributions and imports, is
   observed again. The chain of links that otherwise leads to the trace's record (`core.recipes.chain`) is not needed.
3. If no lock file names an acceptable trace, a pointer record is used. It names the last trace of the same declared parts
   and files (`with_any_versions`). With a lock file, the versions of that trace must be those in the lock file.
4. If a parser needs a GPU, another machine may have used another parser in place of it (a stand-in). The result of a
   partition step is accepted if its recipe differs from the wanted recipe only in the parser. The result that a lock file
   names is preferred. If no lock file names a result, a machine that cannot partition the model accepts the last result
   of any machine (`partition_with_any_parser`). If the stand-in accepted operators that the toolchain does not support,
   the engine step fails, so no wrong engine is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from trtbuild.core.model.stand_in import StandInParser
from trtbuild.core.planning.graph import Reason
from trtbuild.core.planning.lookups import LockedSteps, Lookups
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.lookup_recipes import (
    matches_without_versions,
    partition_with_any_parser,
    stand_in_of,
    with_any_versions,
)
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.encoding import encode
from trtbuild.errors import BlobMissing, EntryCorrupt


@dataclass(frozen=True)
class Accepted:
    """A trace or a calibration from another machine: its recipe, its versions, and the reason for the hit.

    `observations` are its dependencies, except distributions and imports, with their states on this machine."""

    recipe: Recipe
    versions: Mapping[str, str]
    observations: tuple[Observation, ...]
    reason: Reason


def named_by_lock(lookups: Lookups, declared: Declared, locked: LockedSteps | None) -> Accepted | None:
    """The trace or calibration that a lock file names (rule 2). `declared` has no versions.

    None if the lock file names no usable record, or if the record's declared parts or dependencies differ on this
    machine."""
    key = None if locked is None else locked.key_of(declared.stage)
    record = lookups.record(key) if key is not None else None
    if record is None or locked is None or record.recipe.stage != declared.stage or record.recipe.key != key:
        return None
    wanted_parts = dict([*declared.parts, ("versions", dict(locked.versions))])
    observed: list[Observation] = []
    for name, value in record.recipe.parts:
        if ":" not in name:  # a declared part; the names of dependencies have a colon
            if name not in wanted_parts or encode(wanted_parts.pop(name)) != encode(value):
                return None
            continue
        try:
            dependency = Dependency.from_part(name)
        except ValueError:  # a kind of dependency that a later release records, and that cannot be checked here
            return None
        if dependency.kind in ("distribution", "import"):
            continue
        if lookups.observe(dependency) != value:
            return None
        observed.append(Observation(dependency, str(value)))
    if wanted_parts or record.recipe.version != keys.STEP_VERSIONS[declared.stage]:
        return None
    return _accepted(record.recipe, tuple(observed), "trtbuild.lock names it")


def made_from_same_files(
    lookups: Lookups, declared: Declared, observations: tuple[Observation, ...], locked: LockedSteps | None
) -> Accepted | None:
    """The trace or calibration that a pointer record names, or None (rule 3)."""
    unversioned = keys.user_code(declared, observations)
    wanted_pointer = with_any_versions(unversioned)
    recipe = _recipe_behind(lookups, wanted_pointer)
    if recipe is None or not matches_without_versions(recipe, unversioned):
        return None
    if locked is None:
        return _accepted(recipe, observations, "torch is not installed here")
    result = _accepted(recipe, observations, "these are the versions of trtbuild.lock")
    return result if result is not None and dict(result.versions) == dict(locked.versions) else None


def accepted_partition(
    lookups: Lookups, wanted: Recipe, locked: LockedSteps | None, *, can_partition: bool
) -> tuple[Recipe, Reason] | None:
    """The recipe of another machine's partition step, which replaces `wanted`, and the reason for the hit (rule 4).

    None if `wanted` itself should be used, because the lock file names it. If the lock file names no usable record,
    `wanted` is also used in three cases: this machine can partition the model (`can_partition`), `wanted` has a record,
    or no other record is usable."""
    any_parser = partition_with_any_parser(wanted)
    for key in locked.partition_keys if locked is not None else ():
        record = lookups.record(key)
        if record is not None and record.recipe.key == key and _differs_only_in_parser(record.recipe, any_parser):
            if key == wanted.key:
                return None
            return record.recipe, _parser_reason(record.recipe, "trtbuild.lock names it")
    if can_partition or lookups.record_of(wanted) is not None:
        return None
    recipe = _recipe_behind(lookups, any_parser)
    if recipe is None or recipe.stage != wanted.stage or not _differs_only_in_parser(recipe, any_parser):
        return None
    return recipe, _parser_reason(recipe, "this machine cannot partition the model itself")


def _differs_only_in_parser(recipe: Recipe, any_parser: Recipe) -> bool:
    """Whether `recipe` has all parts of `any_parser`, and either the toolchain's own parser or a complete stand-in."""
    stand_in = stand_in_of(recipe)
    is_complete = stand_in is None or stand_in.keys() >= {field.name for field in fields(StandInParser)}
    return is_complete and partition_with_any_parser(recipe).same_as(any_parser)


def _recipe_behind(lookups: Lookups, pointer_recipe: Recipe) -> Recipe | None:
    """The recipe of the record to which the pointer record with `pointer_recipe` points.

    None if there is no such pointer record, or if the record to which it points cannot be read."""
    pointer = lookups.record_of(pointer_recipe)
    if pointer is None or not pointer.recipe.same_as(pointer_recipe):
        return None
    try:
        return Record.from_bytes(lookups.blob(pointer.outputs["record"].sha256)).recipe
    except (BlobMissing, EntryCorrupt, KeyError, TypeError, ValueError, AttributeError):
        return None


def _parser_reason(recipe: Recipe, because: str) -> Reason:
    stand_in = stand_in_of(recipe)
    parser = "the toolchain's own parser"
    if stand_in is not None:
        parser = f"the parser of {stand_in['toolchain']!s} {stand_in['version']!s}"
    return Reason("recorded", f"partitioned with {parser}; accepted because {because}")


def _accepted(recipe: Recipe, observations: tuple[Observation, ...], because: str) -> Accepted | None:
    versions = dict(recipe.parts).get("versions")
    if not isinstance(versions, Mapping):
        return None
    versions_by_name = {name: str(version) for name, version in versions.items()}
    made_with = ", ".join(f"{name} {version}" for name, version in versions_by_name.items())
    reason = Reason("recorded", f"made elsewhere with {made_with}; accepted because {because}")
    return Accepted(recipe, versions_by_name, observations, reason)
