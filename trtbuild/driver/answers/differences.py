"""``trtbuild diff A B``: what differs between two sides (`driver.answers.subjects`), the smallest thing that can be named.

A difference has an area, a name in it, what it is (``added``, ``removed``, ``changed``), and what it was and is now. What
is known of one side alone is not compared; the document says what each side was known from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtbuild.core.recipes.recipe import ABSENT, changes
from trtbuild.driver.answers.subjects import Subject, find
from trtbuild.driver.project.workspace import Request

Document = dict[str, Any]


def diff(request: Request, first: str, second: str) -> Document:
    """``trtbuild.diff/1``. Raises UsageError for what is neither a package nor a model."""
    was, now = find(request, first), find(request, second)
    found = list(differences(was, now))
    return {
        "schema": "trtbuild.diff/1",
        "ok": True,
        "same": not found,
        "a": _side(was),
        "b": _side(now),
        "differences": found,
    }


def _side(subject: Subject) -> Document:
    return {
        "name": subject.said,
        "kind": subject.kind,
        "model": subject.model,
        "known_from": subject.known_from,
        "engine_recipes": sum(step.startswith("engine/") for step in subject.recipes),
    }


def differences(was: Subject, now: Subject) -> Iterator[Document]:
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
        yield {**entry, "area": "versions"} if entry["name"].endswith(".version") else entry
    yield from _traces(was, now)
    yield from _unknown(was, now)
    if was.partitions is not None and now.partitions is not None:
        yield from _partitions(was.partitions, now.partitions)
    yield from _weights(was, now)
    yield from _engines(was, now)


def _changed(area: str, name: str, was: object, now: object, **more: object) -> Document:
    return {"area": area, "name": name, "change": "changed", "was": was, "now": now, **more}


def _entries(area: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[Document]:
    """Named things: those that one side lacks, fields that differ among those that both know, and their order."""
    if was is None or now is None:
        return
    yield from _only(area, was, now)
    both = [name for name in was if name in now]
    for name in both:
        yield from _fields(area, name, was[name], now[name])
    order = [name for name in now if name in was]
    if both != order and area in ("inputs", "outputs", "profiles"):
        yield _changed(area, "order", both, order)


def _only(area: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Document]:
    for name in was:
        if name not in now:
            yield {"area": area, "name": name, "change": "removed", "was": was[name], "now": None}
    for name in now:
        if name not in was:
            yield {"area": area, "name": name, "change": "added", "was": None, "now": now[name]}


def _fields(area: str, name: str, was: Any, now: Any) -> Iterator[Document]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for field in was:
            if field in now:  # a manifest does not know what a package's index knows
                yield from _fields(area, f"{name}.{field}", was[field], now[field])
    elif was != now:
        yield _changed(area, name, was, now)


def _traces(was: Subject, now: Subject) -> Iterator[Document]:
    """What the traces saw, where both are known: sources, files, and versions of the torch side. What was seen by one alone
    is left out: a trace that has to run again has not looked at it yet."""
    if "trace" in was.recipes and "trace" in now.recipes:
        for change in changes(was.recipes["trace"], now.recipes["trace"]):
            if ABSENT in (change.was, change.now):
                continue
            if change.part.startswith(("versions", "distribution:")):
                yield _changed("versions", change.part, change.was, change.now)
            elif change.part.startswith(("source", "file:", "link:", "listing:", "environment:")):
                yield _changed("source", change.part, change.was, change.now)


def _unknown(was: Subject, now: Subject) -> Iterator[Document]:
    """The step that has to run before a side's graph is known, unless it is the same step on both."""
    for side, other in ((was, now), (now, was)):
        if side.unknown_below is None:
            continue
        step, why = side.unknown_below
        mine, others = side.recipes.get(step), other.recipes.get(step)
        if other.unknown_below is not None and mine is not None and others is not None and mine.same_as(others):
            continue
        shown = {"was": None, "now": why} if side is now else {"was": why, "now": None}
        yield {"area": "unknown", "name": f"{side.model}/{step}", "change": "changed", **shown}


def _partitions(was: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[Document]:
    """Partitions by name, each difference once with the targets that have it."""
    found: dict[str, Document] = {}
    for target in (name for name in was if name in now):
        for entry in _cut(was[target], now[target]):
            known = found.setdefault(repr(entry), {**entry, "targets": []})
            known["targets"].append(target)
    yield from found.values()


def _cut(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Document]:
    short = {
        side: {name: {"kind": part["kind"], "graph": part["graph"]} for name, part in cut.items()}
        for side, cut in (("was", was), ("now", now))
    }
    yield from _only("partitions", short["was"], short["now"])
    for name, part in short["was"].items():
        if name in short["now"]:
            yield from _fields("partitions", name, part, short["now"][name])


def _weights(was: Subject, now: Subject) -> Iterator[Document]:
    """Weights by name; by slot where neither side knows names. Slots mean the same in the same graphs only."""
    same = was.partitions is not None and was.partitions == now.partitions
    names = [was.names, now.names]
    if same:
        names = [{**now.names, **was.names}, {**was.names, **now.names}]
    tables = []
    for known, subject in zip(names, (was, now), strict=True):
        named = {known[slot]: part for slot, part in subject.weights.items() if slot in known}
        unnamed = {f"slot {slot}": part for slot, part in subject.weights.items() if slot not in known and same}
        tables.append({**named, **unnamed})
    if not (was.weights and now.weights):
        return
    whole = [len(table) == len(subject.weights) for table, subject in zip(tables, (was, now), strict=True)]
    if all(whole) and not same and _is_whole(was) and _is_whole(now):
        yield from _only("weights", *tables)
    for name, part in tables[0].items():
        if name in tables[1]:
            yield from _fields("weights", name, _listless(part), _listless(tables[1][name]))


def _is_whole(subject: Subject) -> bool:
    """Whether every weight that the partitions take is known."""
    slots = {slot for cut in (subject.partitions or {}).values() for part in cut.values() for slot in part["weights"]}
    return bool(slots) and slots <= subject.weights.keys()


def _listless(part: Mapping[str, Any]) -> dict[str, Any]:
    """A weight with its shape as a list, as JSON has it."""
    return {**part, "shape": list(part["shape"])}


def _engines(was: Subject, now: Subject) -> Iterator[Document]:
    """Engines by ``partition@target``: other keys, and the parts of their recipes that differ; or other plans."""
    by_key = was.engines is not None and now.engines is not None
    sides: Sequence[Mapping[str, str] | None] = (was.engines, now.engines) if by_key else (was.plans, now.plans)
    if sides[0] is None or sides[1] is None:
        return
    yield from _only("engines", sides[0], sides[1])
    for name, before in sides[0].items():
        after = sides[1].get(name)
        if after is None or before == after:
            continue
        recipes = [side.recipes.get(f"engine/{name}") for side in (was, now)]
        parts: list[Document] | None = None
        if by_key and recipes[0] is not None and recipes[1] is not None:
            parts = [dict(change.to_json()) for change in changes(recipes[0], recipes[1])]
        yield _changed("engines", name, before, after, what="key" if by_key else "plan", parts=parts)
