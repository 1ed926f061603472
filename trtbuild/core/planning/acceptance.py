"""Traces that this machine did not make and could not make: where torch is missing, or is not the one of a lock file.

Rules
1. Neither torch-side versions nor installed distributions are compared: the record says with which it was made, and the
   steps below are looked up with those. All else that was declared or seen has to be the same here and now.
2. A lock file names its trace by key. Everything that this trace has looked at is looked at again; no chain is followed,
   and none has to be in the cache.
3. Otherwise a pointer leads from the files to the last trace that was made of them (`keys.any_trace`). With a lock file,
   only to one that was made with the versions that it names.
4. Where a parser needs a GPU, another machine may have asked another one. A partition is taken whichever parser it was cut
   with, if all else of its recipe is the same: the one that a lock file names before any other; and where this machine
   cannot cut the model itself, the last one that was made (`keys.any_partition`). What a parser was wrong about, the engine
   step says; no engine is built of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.planning.graph import Reason
from trtbuild.core.planning.lookups import LockedTrace, Lookups
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.encoding import Value, encode
from trtbuild.errors import BlobMissing, EntryCorrupt

Declared = Sequence[tuple[str, Value]]


@dataclass(frozen=True)
class Accepted:
    """The recipe of a trace that is taken as it is, the versions that it was made with, what of it was seen again here, and
    the reason of the hit."""

    recipe: Recipe
    versions: Mapping[str, str]
    observations: tuple[Observation, ...]
    reason: Reason


def by_lock(look: Lookups, declared: Declared, locked: LockedTrace | None) -> Accepted | None:
    """The trace that a lock file names, if it is one of what is `declared` (without versions) and of what there is to see
    here (rule 2)."""
    record = look.record(locked.key) if locked is not None and locked.key is not None else None
    if record is None or locked is None or record.recipe.stage != "trace" or record.recipe.key != locked.key:
        return None
    wanted = dict([*declared, ("versions", dict(locked.versions))])
    seen: list[Observation] = []
    for name, value in record.recipe.parts:
        if ":" not in name:
            if name not in wanted or encode(wanted.pop(name)) != encode(value):
                return None
            continue
        dependency = Dependency.from_part(name)
        if dependency.kind == "distribution":
            continue
        if look.observe(dependency) != value:
            return None
        seen.append(Observation(dependency, str(value)))
    if wanted or record.recipe.version != keys.STEP_VERSIONS["trace"]:
        return None
    return _accepted(record.recipe, tuple(seen), "trtbuild.lock names it")


def by_files(
    look: Lookups, declared: Declared, observations: tuple[Observation, ...], locked: LockedTrace | None
) -> Accepted | None:
    """The trace that a pointer leads to (rule 3)."""
    anyone = keys.trace(declared, observations)
    wanted = keys.any_trace(anyone)
    pointer = look.record(wanted.key)
    if pointer is None or not pointer.recipe.same_as(wanted):
        return None
    try:
        made = Record.from_bytes(look.blob(pointer.outputs["record"].sha256)).recipe
    except (BlobMissing, EntryCorrupt, KeyError, TypeError, ValueError, AttributeError):
        return None
    if not keys.may_stand_for(made, anyone):
        return None
    if locked is None:
        return _accepted(made, observations, "torch is not installed here")
    found = _accepted(made, observations, "these are the versions of trtbuild.lock")
    return found if found is not None and dict(found.versions) == dict(locked.versions) else None


def partition(
    look: Lookups, wanted: Recipe, locked: LockedTrace | None, *, cuts_here: bool
) -> tuple[Recipe, Reason] | None:
    """The recipe of a partition that was cut elsewhere and is taken in place of the `wanted` one, and the reason of the hit
    (rule 4). None: none is, or the wanted one is there."""
    anyone = keys.any_partition(wanted)
    for key in locked.partitions if locked is not None else ():
        record = look.record(key)
        if record is not None and record.recipe.key == key and keys.any_partition(record.recipe).same_as(anyone):
            if key == wanted.key:
                return None
            return record.recipe, _cut_elsewhere(record.recipe, "trtbuild.lock names it")
    if cuts_here or look.record_of(wanted) is not None:
        return None
    pointer = look.record_of(anyone)
    if pointer is None or not pointer.recipe.same_as(anyone):
        return None
    try:
        made = Record.from_bytes(look.blob(pointer.outputs["record"].sha256)).recipe
    except (BlobMissing, EntryCorrupt, KeyError, TypeError, ValueError, AttributeError):
        return None
    if made.stage != wanted.stage or not keys.any_partition(made).same_as(anyone):
        return None
    return made, _cut_elsewhere(made, "this machine cannot cut the model itself")


def _cut_elsewhere(made: Recipe, because: str) -> Reason:
    asked = keys.stand_in_of(made)
    said = f" of {asked['toolchain']!s} {asked['version']!s}" if asked is not None else ", the toolchain's own,"
    return Reason("recorded", f"cut by what the parser{said} takes; accepted because {because}")


def _accepted(made: Recipe, observations: tuple[Observation, ...], because: str) -> Accepted | None:
    versions = dict(made.parts).get("versions")
    if not isinstance(versions, Mapping):
        return None
    named = {name: str(version) for name, version in versions.items()}
    made_with = ", ".join(f"{name} {version}" for name, version in named.items())
    reason = Reason("recorded", f"made elsewhere with {made_with}; accepted because {because}")
    return Accepted(made, named, observations, reason)
