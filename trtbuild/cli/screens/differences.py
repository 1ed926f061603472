"""The result of ``trtbuild diff`` as text: the differences, by area."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import count
from trtbuild.driver.answers.differences import Diff, Difference, EngineDifference, PartitionDifference, Side

#: `Side.known_from` → its text in the line about a side.
_SIDE_TEXTS = {
    "recipes": "with the recipes of its engines",
    "index": "by its index alone: the records of its engines are not in this cache",
    "manifest": "by the manifest alone: run `trtbuild build` to compare graphs and engines",
}


def diff_lines(document: Diff) -> list[str]:
    lines = [_side("a", document.a), _side("b", document.b)]
    for area, entries in groupby(document.differences, key=lambda entry: entry.area):
        lines.append(f"{terminal.bold(area)}:")
        for entry in entries:
            lines += _entry(entry)
    differences = document.differences
    lines.append(count(len(differences), "difference") if differences else "no differences")
    return lines


def _side(letter: str, side: Side) -> str:
    text = _SIDE_TEXTS[side.known_from]
    if side.known_from == "recipes" and not side.engine_recipes:
        text = "by the keys of its engines; their records are not in this cache"
    return f"{letter}: {side.kind} {terminal.bold(side.name)}, {text}"


def _entry(entry: Difference) -> list[str]:
    targets = f"  ({', '.join(entry.targets)})" if isinstance(entry, PartitionDifference) else ""
    head = f"  {terminal.CHANGE_MARKS[entry.change]} {entry.name}"
    if entry.area == "unknown":  # one side's graph is not known before this step has run
        return [f"{head} has to run: {entry.was or entry.now}"]
    if entry.change != "changed":
        return [f"{head}: {_value_text(entry.now if entry.change == 'added' else entry.was)}{targets}"]
    parts = (entry.parts if isinstance(entry, EngineDifference) else None) or ()
    return [
        f"{head}: {_short(entry.was)} → {_short(entry.now)}{targets}",
        *(f"      {part.part}: {_short(part.was)} → {_short(part.now)}" for part in parts),
    ]


def _value_text(value: Any) -> str:
    """A value that only one side has: for a weight ``float32 [32, 5]  3ef19494a21a``, with the start of its digest."""
    if isinstance(value, dict) and value.keys() >= {"dtype", "shape", "sha256"}:
        return f"{value['dtype']} {json.dumps(list(value['shape']))}  {_short(value['sha256'])}"
    if isinstance(value, dict) and value.keys() == {"kind", "graph"}:
        return f"{value['kind']}  {_short(value['graph'])}"
    return _short(value)


def _short(value: Any) -> str:
    """12 characters of a digest, or at most 60 characters of another value."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return text[:12]
    return text if len(text) <= 60 else f"{text[:28]}…{text[-28:]}"
