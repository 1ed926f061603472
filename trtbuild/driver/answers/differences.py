"""``trtbuild diff A B``: the differences between two packages or models (`driver.answers.subjects`).

A difference names the smallest part that differs. It has an area, a name, its kind (``added``, ``removed``, ``changed``),
the old value and the new value. Fields that are known for one side only are not compared. The document contains the source
of each side's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trtbuild.core.recipes.recipe import ABSENT, Change, changes
from trtbuild.driver.answers.subjects import Subject, find
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
    """One thing that differs. `was` or `now` is null where that side does not have it."""

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
    """An engine with another key or plan. `parts` differ in its recipe; null where a recipe is not known."""

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
    was, now = find(request, first), find(request, second)
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
    """All differences, in the order in which a package is described."""
    if was.model != now.model:
        yield _changed("model", "name", was.model, now.model)
    for area in ("inputs", "outputs", "dims", "profiles"):
        yield from _entries(area, getattr(was, area), getattr(now, area))
    if was.precision != now.precision:
        yield _changed("precision", "precision", was.precision, now.precision)
    if was.reference != now.reference:
        yield _changed("reference", "reference", was.reference, now.reference)
    for entry in _entries("targets", was.targets, now.targets):
        yield replace(entry, area="versions") if entry.name.endswith(".version") else entry
    yield from _traces(was, now)
    yield from _unknown(was, now)
    if was.partitions is not None and now.partitions is not None:
        yield from _partitions(was.partitions, now.partitions)
    yield from _weights(was, now)
    yield from _engines(was, now)


def _changed(area: str, name: str, was: object, now: object) -> Difference:
    return Difference(area=area, name=name, change="changed", was=was, now=now)


def _entries(area: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[Difference]:
    """The differences between two mappings: entries of one side only, different fields, and the order."""
    if was is None or now is None:
        return
    yield from _added_and_removed(area, was, now)
    both = [name for name in was if name in now]
    for name in both:
        yield from _fields(area, name, was[name], now[name])
    order = [name for name in now if name in was]
    if both != order and area in ("inputs", "outputs", "profiles"):
        yield _changed(area, "order", both, order)


def _added_and_removed(area: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """The entries that only one side has."""
    for name in was:
        if name not in now:
            yield Difference(area=area, name=name, change="removed", was=was[name], now=None)
    for name in now:
        if name not in was:
            yield Difference(area=area, name=name, change="added", was=None, now=now[name])


def _fields(area: str, name: str, was: Any, now: Any) -> Iterator[Difference]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for field in was:
            if field in now:  # a package's index has more fields than a manifest
                yield from _fields(area, f"{name}.{field}", was[field], now[field])
    elif was != now:
        yield _changed(area, name, was, now)


def _traces(was: Subject, now: Subject) -> Iterator[Difference]:
    """The differences between two traces: sources, files, and versions of the torch side.

    An observation that only one trace contains is left out. If the other trace has to run again, it may make the same
    observation then.
    """
    if "trace" in was.recipes and "trace" in now.recipes:
        for change in changes(was.recipes["trace"], now.recipes["trace"]):
            if ABSENT in (change.was, change.now):
                continue
            if change.part.startswith(("versions", "distribution:")):
                yield _changed("versions", change.part, change.was, change.now)
            elif change.part.startswith(("source", "file:", "link:", "listing:", "environment:")):
                yield _changed("source", change.part, change.was, change.now)


def _unknown(was: Subject, now: Subject) -> Iterator[Difference]:
    """For each side without a known graph: the step that has to run first. Nothing if both sides wait for the same step."""
    for side, other in ((was, now), (now, was)):
        if side.unknown_below is None:
            continue
        step, why = side.unknown_below
        recipe, other_recipe = side.recipes.get(step), other.recipes.get(step)
        waits_too = other.unknown_below is not None
        if waits_too and recipe is not None and other_recipe is not None and recipe.same_as(other_recipe):
            continue
        values = (None, why) if side is now else (why, None)
        yield _changed("unknown", f"{side.model}/{step}", *values)


def _partitions(was: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    """The differences between partitions of the same name. A difference of several targets is one entry."""
    by_text: dict[str, tuple[Difference, list[str]]] = {}
    for target in (name for name in was if name in now):
        for entry in _partitions_of_target(was[target], now[target]):
            by_text.setdefault(repr(entry), (entry, []))[1].append(target)
    for entry, targets in by_text.values():
        yield PartitionDifference(**vars(entry), targets=targets)


def _partitions_of_target(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    compared = {
        side: {name: {"kind": part["kind"], "graph": part["graph"]} for name, part in partitions.items()}
        for side, partitions in (("was", was), ("now", now))
    }
    yield from _added_and_removed("partitions", compared["was"], compared["now"])
    for name, part in compared["was"].items():
        if name in compared["now"]:
            yield from _fields("partitions", name, part, compared["now"][name])


def _weights(was: Subject, now: Subject) -> Iterator[Difference]:
    """The differences between weights of the same name.

    Weights without a known name are compared by slot if both sides have the same partitions. With other partitions, a slot
    may be another weight.
    """
    same_partitions = was.partitions is not None and was.partitions == now.partitions
    names = [was.names, now.names]
    if same_partitions:
        names = [{**now.names, **was.names}, {**was.names, **now.names}]
    tables = []
    for known, subject in zip(names, (was, now), strict=True):
        named = {known[slot]: part for slot, part in subject.weights.items() if slot in known}
        unnamed = {
            f"slot {slot}": part for slot, part in subject.weights.items() if slot not in known and same_partitions
        }
        tables.append({**named, **unnamed})
    if not (was.weights and now.weights):
        return
    all_named = all(len(table) == len(subject.weights) for table, subject in zip(tables, (was, now), strict=True))
    if all_named and not same_partitions and _all_weights_known(was) and _all_weights_known(now):
        yield from _added_and_removed("weights", *tables)
    for name, part in tables[0].items():
        if name in tables[1]:
            yield from _fields("weights", name, _with_shape_list(part), _with_shape_list(tables[1][name]))


def _all_weights_known(subject: Subject) -> bool:
    """Whether all weights of the partitions are known."""
    slots = {
        slot
        for partitions in (subject.partitions or {}).values()
        for part in partitions.values()
        for slot in part["weights"]
    }
    return bool(slots) and slots <= subject.weights.keys()


def _with_shape_list(part: Mapping[str, Any]) -> dict[str, Any]:
    """A weight with its shape as a list, as in JSON."""
    return {**part, "shape": list(part["shape"])}


def _engines(was: Subject, now: Subject) -> Iterator[Difference]:
    """The differences between engines of the same ``partition@target``.

    Their keys are compared, with the different parts of their recipes. If a key is not known, the plans are compared.
    """
    by_key = was.engines is not None and now.engines is not None
    sides: Sequence[Mapping[str, str] | None] = (was.engines, now.engines) if by_key else (was.plans, now.plans)
    if sides[0] is None or sides[1] is None:
        return
    yield from _added_and_removed("engines", sides[0], sides[1])
    for name, before in sides[0].items():
        after = sides[1].get(name)
        if after is None or before == after:
            continue
        recipes = [side.recipes.get(f"engine/{name}") for side in (was, now)]
        parts = None
        if by_key and recipes[0] is not None and recipes[1] is not None:
            parts = changes(recipes[0], recipes[1])
        changed = _changed("engines", name, before, after)
        yield EngineDifference(**vars(changed), what="key" if by_key else "plan", parts=parts)
