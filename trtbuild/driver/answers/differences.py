"""``trtbuild diff A B``: the differences between two packages or models (`driver.answers.subjects`).

A difference names the smallest field that differs. It has an area, a name, its kind (``added``, ``removed``, ``changed``),
the old value and the new value. Fields that are known for one side only are not compared. The document names the source
of each side's data: recipes, the index of a package, or the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtbuild.core.planning.graph import USER_CODE_STAGES
from trtbuild.core.recipes.recipe import ABSENT, Change, changes
from trtbuild.driver.answers.subjects import Subject, find_subject
from trtbuild.driver.project.workspace import Request


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison, and the source of its data."""

    name: str
    kind: str
    model: str
    known_from: str
    engine_recipes: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs. `was` or `now` is null if that side does not have the thing."""

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
    """An engine whose key or plan differs. `parts`: the differing parts of its recipe, null if a recipe is not known."""

    what: Literal["key", "plan"]
    parts: Sequence[Change] | None


@dataclass(frozen=True, kw_only=True)
class Diff:
    """All differences between `a` and `b`."""

    schema: Literal["trtbuild.diff/1"] = "trtbuild.diff/1"
    ok: bool = True
    same: bool
    a: Side
    b: Side
    differences: Sequence[Difference | PartitionDifference | EngineDifference]


def diff(request: Request, first: str, second: str) -> Diff:
    """Compare two packages or models. Raises UsageError if a name is neither a package nor a model."""
    was, now = find_subject(request, first), find_subject(request, second)
    entries = list(differences(was, now))
    return Diff(same=not entries, a=_side(was), b=_side(now), differences=entries)


def _side(subject: Subject) -> Side:
    return Side(
        name=subject.title,
        kind=subject.kind,
        model=subject.model,
        known_from=subject.known_from,
        engine_recipes=sum(step.startswith("engine/") for step in subject.recipes),
    )


def differences(was: Subject, now: Subject) -> Iterator[Difference]:
    """All differences between `was` and `now`."""
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
    """The differences between two mappings: entries of only one side, fields with different values, and the order."""
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
    """The entries that only one side has."""
    for name in was:
        if name not in now:
            yield Difference(area=area, name=name, change="removed", was=was[name], now=None)
    for name in now:
        if name not in was:
            yield Difference(area=area, name=name, change="added", was=None, now=now[name])


def _field_differences(area: str, name: str, was: Any, now: Any) -> Iterator[Difference]:
    """The smallest fields that differ. A field that only one side has is not compared, because the index of a package has
    more fields than a manifest. The exception is the range of an input: without the field, the input has no range."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for field in was:
            if field in now:
                yield from _field_differences(area, f"{name}.{field}", was[field], now[field])
        if area == "inputs":
            ranges = [{f"{name}.range": side["range"]} if "range" in side else {} for side in (was, now)]
            yield from _one_sided_entries(area, *ranges)
    elif was != now:
        yield _value_difference(area, name, was, now)


def _trace_differences(was: Subject, now: Subject) -> Iterator[Difference]:
    """The differences between two traces and their calibrations: sources, files, environment variables, fields of
    ``quantize:``, and the versions of torch and related packages.

    A part that only one recipe contains is left out. If the step of the other side has to run again, its new recipe may
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


def _unknown_graphs(was: Subject, now: Subject) -> Iterator[Difference]:
    """A difference for each side whose graph is not known, with the step that has to run first.

    If both sides wait for a step with the same recipe, there is no difference.
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
    """The differences between the partitions, for each target that both sides have.

    If several targets have the same difference, it is one entry.
    """
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


def _weight_differences(was: Subject, now: Subject) -> Iterator[Difference]:
    """The differences between weights of the same name, and the weights that only one side has.

    Weights without a known name are compared by slot if both sides have the same partitions. If the partitions differ, the
    same slot may belong to another weight.
    """
    if not (was.weights and now.weights):
        return
    same_partitions = was.partitions is not None and was.partitions == now.partitions
    names_of_sides = [was.weight_names, now.weight_names]
    if same_partitions:  # names that one side lacks come from the other side (rule 3 of `subjects`)
        names_of_sides = [{**now.weight_names, **was.weight_names}, {**was.weight_names, **now.weight_names}]
    weights_of_sides = []
    for names, subject in zip(names_of_sides, (was, now), strict=True):
        weights_with_name = {names[slot]: weight for slot, weight in subject.weights.items() if slot in names}
        weights_without_name = {
            f"slot {slot}": weight for slot, weight in subject.weights.items() if slot not in names and same_partitions
        }
        weights_of_sides.append({**weights_with_name, **weights_without_name})
    # If a weight or its name is not known, a weight that only one side lists may be on the other side, too.
    have_all_names = all(
        len(weights) == len(subject.weights) for weights, subject in zip(weights_of_sides, (was, now), strict=True)
    )
    if have_all_names and not same_partitions and _are_all_weights_known(was) and _are_all_weights_known(now):
        yield from _one_sided_entries("weights", *weights_of_sides)
    old_weights, new_weights = weights_of_sides
    for name, weight in old_weights.items():
        if name in new_weights:
            other_weight = new_weights[name]
            yield from _field_differences("weights", name, _weight_to_json(weight), _weight_to_json(other_weight))


def _are_all_weights_known(subject: Subject) -> bool:
    """Whether all weights of the partitions are known."""
    slots = {
        slot
        for partitions in (subject.partitions or {}).values()
        for partition in partitions.values()
        for slot in partition["weights"]
    }
    return bool(slots) and slots <= subject.weights.keys()


def _weight_to_json(weight: Mapping[str, Any]) -> dict[str, Any]:
    """A weight with its shape as a list, as in JSON."""
    return {**weight, "shape": list(weight["shape"])}


def _engine_differences(was: Subject, now: Subject) -> Iterator[Difference]:
    """The engines that only one side has, and the differences between engines of the same ``partition@target``.

    Their keys are compared, and a difference contains the differing parts of the recipes. If the keys of one side are
    not known, the digests of the plans are compared.
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
