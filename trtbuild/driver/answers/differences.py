"""``trtbuild diff A B``: the differences between two packages or models (`driver.answers.package_facts`).

A difference names the smallest field that differs, such as ``rows.x.max``. A field that is known for one side only is not
compared, except an input's `range`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtbuild.core.planning.graph import USER_CODE_STAGES
from trtbuild.core.recipes.recipe import ABSENT, Change, changes
from trtbuild.driver.answers.package_facts import PackageFacts, find_facts
from trtbuild.driver.project.workspace import Request


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison.

    `known_from` is where its data come from: ``recipes``, the ``index`` of a package, or the ``manifest``.
    `engine_recipes` is the number of engines whose recipes are known.
    """

    name: str
    kind: str
    model: str
    known_from: str
    engine_recipes: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An entry or a field that differs. `was` or `now` is null if that side does not have it."""

    area: str
    name: str
    change: Literal["added", "removed", "changed"]
    was: Any
    now: Any


@dataclass(frozen=True, kw_only=True)
class PartitionDifference(Difference):
    """A partition that differs, and the targets that have this difference."""

    targets: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class EngineDifference(Difference):
    """An engine whose keys differ or, if a key is not known, whose plans (TensorRT's files) differ.

    `parts` are the parts of the recipes that differ; null if a recipe is not known.
    """

    what: Literal["key", "plan"]
    parts: Sequence[Change] | None


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The differences between two packages or models."""

    schema: Literal["trtbuild.diff/1"] = "trtbuild.diff/1"
    ok: bool = True
    same: bool
    a: Side
    b: Side
    differences: Sequence[Difference | PartitionDifference | EngineDifference]


def diff(request: Request, first: str, second: str) -> Diff:
    """Compare two packages or models. Raises UsageError if a name is neither a package nor a model."""
    was, now = find_facts(request, first), find_facts(request, second)
    entries = list(differences(was, now))
    return Diff(same=not entries, a=_side(was), b=_side(now), differences=entries)


def _side(facts: PackageFacts) -> Side:
    return Side(
        name=facts.title,
        kind=facts.kind,
        model=facts.model,
        known_from=facts.known_from,
        engine_recipes=sum(step.startswith("engine/") for step in facts.recipes),
    )


def differences(was: PackageFacts, now: PackageFacts) -> Iterator[Difference]:
    """Yield the differences, area by area."""
    if was.model != now.model:
        yield _value_difference("model", "name", was.model, now.model)
    for area in ("inputs", "outputs", "dims", "profiles"):
        yield from _entry_differences(area, getattr(was, area), getattr(now, area))
    if was.precision != now.precision:
        yield _value_difference("precision", "precision", was.precision, now.precision)
    if was.reference != now.reference:
        yield _value_difference("reference", "reference", was.reference, now.reference)
    for entry in _entry_differences("targets", was.targets, now.targets):
        yield replace(entry, area="versions") if entry.name.endswith(".version") else entry
    yield from _trace_differences(was, now)
    yield from _unknown_graphs(was, now)
    if was.partitions is not None and now.partitions is not None:
        yield from _partition_differences(was.partitions, now.partitions)
    yield from _weight_differences(was, now)
    yield from _engine_differences(was, now)


def _value_difference(area: str, name: str, was: object, now: object) -> Difference:
    return Difference(area=area, name=name, change="changed", was=was, now=now)


def _entry_differences(area: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[Difference]:
    """The differences between two mappings of named entries, such as the inputs of both sides."""
    if was is None or now is None:
        return
    yield from _one_sided_entries(area, was, now)
    old_order = [name for name in was if name in now]
    for name in old_order:
        yield from _field_differences(area, name, was[name], now[name])
    new_order = [name for name in now if name in was]
    if old_order != new_order and area in ("inputs", "outputs", "profiles"):
        yield _value_difference(area, "order", old_order, new_order)


def _one_sided_entries(area: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name in was:
        if name not in now:
            yield Difference(area=area, name=name, change="removed", was=was[name], now=None)
    for name in now:
        if name not in was:
            yield Difference(area=area, name=name, change="added", was=None, now=now[name])


def _field_differences(area: str, name: str, was: Any, now: Any) -> Iterator[Difference]:
    """The smallest fields that differ.

    A field that only one side has is not compared, because the index of a package has more fields than a manifest. The
    exception is `range`: an input without this field has no range.
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for field in was:
            if field in now:
                yield from _field_differences(area, f"{name}.{field}", was[field], now[field])
        if area == "inputs":
            ranges = [{f"{name}.range": side["range"]} if "range" in side else {} for side in (was, now)]
            yield from _one_sided_entries(area, *ranges)
    elif was != now:
        yield _value_difference(area, name, was, now)


def _trace_differences(was: PackageFacts, now: PackageFacts) -> Iterator[Difference]:
    """The differences between two traces and their calibrations: sources, files, environment variables, fields of
    ``quantize:``, and the versions of torch and related packages.

    A part that only one recipe contains is left out. The other side may have to run the step, and its new recipe may then
    contain the same part.
    """
    changed: dict[str, Change] = {}
    for stage in USER_CODE_STAGES:
        if stage in was.recipes and stage in now.recipes:
            changed |= {change.part: change for change in changes(was.recipes[stage], now.recipes[stage])}
    for change in changed.values():
        if ABSENT in (change.was, change.now):
            continue
        if change.part.startswith(("versions", "distribution:")):
            yield _value_difference("versions", change.part, change.was, change.now)
        elif change.part.startswith(
            ("source", "quantization", "file:", "link:", "listing:", "environment:", "import:")
        ):
            yield _value_difference("source", change.part, change.was, change.now)


def _unknown_graphs(was: PackageFacts, now: PackageFacts) -> Iterator[Difference]:
    """One difference for each side whose graph is not known, because a step has to run first.

    If both sides wait for steps with the same recipe, there is no difference.
    """
    for side, other in ((was, now), (now, was)):
        if side.blocking_step is None:
            continue
        step, why = side.blocking_step
        recipe, other_recipe = side.recipes.get(step), other.recipes.get(step)
        other_waits = other.blocking_step is not None
        if other_waits and recipe is not None and other_recipe is not None and recipe.same_as(other_recipe):
            continue
        values = (None, why) if side is now else (why, None)
        yield _value_difference("unknown", f"{side.model}/{step}", *values)


def _partition_differences(
    was: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    """The differences between the partitions of each common target. Equal differences of several targets are one entry."""
    entries_by_text: dict[str, tuple[Difference, list[str]]] = {}
    for target in (name for name in was if name in now):
        for entry in _partition_differences_of_target(was[target], now[target]):
            entries_by_text.setdefault(repr(entry), (entry, []))[1].append(target)
    for entry, targets in entries_by_text.values():
        yield PartitionDifference(**vars(entry), targets=targets)


def _partition_differences_of_target(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    compared = {
        side: {name: {"kind": partition["kind"], "graph": partition["graph"]} for name, partition in partitions.items()}
        for side, partitions in (("was", was), ("now", now))
    }
    yield from _one_sided_entries("partitions", compared["was"], compared["now"])
    for name, partition in compared["was"].items():
        if name in compared["now"]:
            yield from _field_differences("partitions", name, partition, compared["now"][name])


def _weight_differences(was: PackageFacts, now: PackageFacts) -> Iterator[Difference]:
    """The differences between weights of the same name. If all weights are known, also those that only one side has.

    A weight without a known name is compared by its slot, which is its number in the trace. This needs equal partitions,
    because otherwise the same slot may belong to another weight.
    """
    if not (was.weights and now.weights):
        return
    same_partitions = was.partitions is not None and was.partitions == now.partitions
    names_of_sides = [was.weight_names, now.weight_names]
    if same_partitions:  # names that one side lacks come from the other side (rule 3 of `package_facts`)
        names_of_sides = [{**now.weight_names, **was.weight_names}, {**was.weight_names, **now.weight_names}]
    weights_of_sides = []
    for names, facts in zip(names_of_sides, (was, now), strict=True):
        weights_with_name = {names[slot]: weight for slot, weight in facts.weights.items() if slot in names}
        weights_without_name = {
            f"slot {slot}": weight for slot, weight in facts.weights.items() if slot not in names and same_partitions
        }
        weights_of_sides.append({**weights_with_name, **weights_without_name})
    # A weight that only one side lists may also be on the other side, if that side has unknown weights or names.
    have_all_names = all(
        len(weights) == len(facts.weights) for weights, facts in zip(weights_of_sides, (was, now), strict=True)
    )
    if have_all_names and not same_partitions and _are_all_weights_known(was) and _are_all_weights_known(now):
        yield from _one_sided_entries("weights", *weights_of_sides)
    old_weights, new_weights = weights_of_sides
    for name, weight in old_weights.items():
        if name in new_weights:
            other_weight = new_weights[name]
            yield from _field_differences("weights", name, _weight_to_json(weight), _weight_to_json(other_weight))


def _are_all_weights_known(facts: PackageFacts) -> bool:
    slots = {
        slot
        for partitions in (facts.partitions or {}).values()
        for partition in partitions.values()
        for slot in partition["weights"]
    }
    return bool(slots) and slots <= facts.weights.keys()


def _weight_to_json(weight: Mapping[str, Any]) -> dict[str, Any]:
    return {**weight, "shape": list(weight["shape"])}


def _engine_differences(was: PackageFacts, now: PackageFacts) -> Iterator[Difference]:
    """The engines that only one side has, and the differences between engines of the same ``partition@target``.

    Keys are compared. If one side has no known keys, the digests of the plans are compared.
    """
    by_key = was.engines is not None and now.engines is not None
    old_digests, new_digests = (was.engines, now.engines) if by_key else (was.plans, now.plans)
    if old_digests is None or new_digests is None:
        return
    yield from _one_sided_entries("engines", old_digests, new_digests)
    for name, before in old_digests.items():
        after = new_digests.get(name)
        if after is None or before == after:
            continue
        old_recipe, new_recipe = was.recipes.get(f"engine/{name}"), now.recipes.get(f"engine/{name}")
        parts = None
        if by_key and old_recipe is not None and new_recipe is not None:
            parts = changes(old_recipe, new_recipe)
        difference = _value_difference("engines", name, before, after)
        yield EngineDifference(**vars(difference), what="key" if by_key else "plan", parts=parts)
