"""The recipes with which a machine without PyTorch, or without TensorRT's parser, looks up results of other machines.

Most records with such recipes are pointer records. Their only output is a copy of another record, the one with the step's
own recipe.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Value, encode

#: The stages of pointer records. A pointer record is uploaded after the record to which it leads.
POINTER_STAGES = frozenset(("calibrate-any", "trace-any", "partition-any"))


def exported_file_with_any_torch(recipe: Recipe) -> Recipe:
    """The recipe for looking up ``.pt2`` files that any version of torch wrote: the same parts, without the version."""
    return Recipe("pt2-any", recipe.version, tuple(part for part in recipe.parts if part[0] != "torch"))


def with_any_versions(recipe: Recipe) -> Recipe:
    """The recipe for looking up a trace or a calibration on a machine without torch: the same parts, without versions."""
    return Recipe(f"{recipe.stage}-any", recipe.version, tuple(part for part in recipe.parts if part[0] != "versions"))


def partition_with_any_parser(recipe: Recipe) -> Recipe:
    """The recipe for looking up a partition step on a machine without a parser: the same parts, without a stand-in.

    A stand-in is a parser that replaces a toolchain's own parser on machines where that parser cannot run."""
    parts = tuple((name, _toolchain_of(value) if name == "parser" else value) for name, value in recipe.parts)
    return Recipe("partition-any", recipe.version, parts)


def stand_in_of(partition: Recipe) -> Mapping[str, Value] | None:
    """The fields of the stand-in parser in a partition's recipe; None if the recipe has the toolchain's own parser."""
    parser = dict(partition.parts).get("parser")
    stand_in = parser[2] if isinstance(parser, list | tuple) and len(parser) > 2 else None
    return stand_in if isinstance(stand_in, Mapping) else None


def matches_without_versions(recorded: Recipe, unversioned: Recipe) -> bool:
    """Whether the recipe of a recorded trace or calibration matches `unversioned`, a recipe without versions.

    Each declared part of `unversioned` must be equal in `recorded`. A dependency (its name has a colon) must be equal only
    if both recipes have it, because a lookup may observe more files than the trace depends on."""
    parts = dict(recorded.parts)
    return (recorded.stage, recorded.version) == (unversioned.stage, unversioned.version) and all(
        encode(parts[name]) == encode(value) if name in parts else ":" in name for name, value in unversioned.parts
    )


def _toolchain_of(parser: Value) -> Value:
    return parser[:2] if isinstance(parser, list | tuple) else parser
