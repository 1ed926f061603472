"""Recipes: the ordered, named, printable parts that a step's key is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trtbuild.core.encoding import Value, digest, encode, from_json, to_json

#: Version of the form of recipes themselves. It is in every key.
SCHEMA = "trtbuild.recipe/1"


@dataclass(frozen=True)
class Recipe:
    """What a step is made from. Two steps with equal recipes have equal results.

    `stage` and `version` say which transformation, in which edition (bumped when the output of that step's own
    code changes); `parts` are its inputs, by name, in a fixed order.
    """

    stage: str
    version: int
    parts: tuple[tuple[str, Value], ...]

    @cached_property
    def key(self) -> str:
        """SHA-256 (64 hex digits) of the canonical encoding."""
        names = [name for name, _ in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"a recipe names a part twice: {sorted({n for n in names if names.count(n) > 1})}")
        return digest(SCHEMA, self._value())

    def _value(self) -> Value:
        return [self.stage, self.version, [[name, value] for name, value in self.parts]]

    def to_json(self) -> dict[str, object]:
        return {
            "stage": self.stage,
            "version": self.version,
            "parts": [[name, to_json(value)] for name, value in self.parts],
        }

    @classmethod
    def from_json(cls, data: object) -> Recipe:
        """Raises ValueError when `data` is not a recipe's JSON form."""
        if not isinstance(data, dict):
            raise ValueError("a recipe is an object")
        stage, version, parts = data.get("stage"), data.get("version"), data.get("parts")
        if not isinstance(stage, str) or type(version) is not int or not isinstance(parts, list):
            raise ValueError("a recipe has a stage, a version and parts")
        pairs = []
        for part in parts:
            if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
                raise ValueError("a part is a name and a value")
            pairs.append((part[0], from_json(part[1])))
        return cls(stage, version, tuple(pairs))

    def same_as(self, other: Recipe) -> bool:
        """Equal in full, by canonical bytes (DESIGN: a hit compares recipes, not only keys)."""
        return encode(self._value()) == encode(other._value())


@dataclass(frozen=True)
class Change:
    """One part that differs between two recipes of one step, printable."""

    part: str
    was: str
    now: str

    def to_json(self) -> dict[str, str]:
        return {"part": self.part, "was": self.was, "now": self.now}


ABSENT = "(absent)"


def printable(value: Value) -> str:
    """One line for a person. Never part of a key."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {printable(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(printable(item) for item in value) + "]"


def changes(was: Recipe, now: Recipe) -> tuple[Change, ...]:
    """The parts that differ, in the order of `now`, then those that `was` alone has; none for equal recipes only.

    A mapping on both sides is compared entry by entry (``settings.optimization_level``), and so are lists of one length,
    so that the smallest thing that changed is what is named.
    """
    found: list[Change] = []
    if was.version != now.version:
        found.append(Change("step version", str(was.version), str(now.version)))
    before, after = dict(was.parts), dict(now.parts)
    for name in [*after, *(name for name in before if name not in after)]:
        _compare(name, before.get(name, _MISSING), after.get(name, _MISSING), found)
    if not found and not was.same_as(now):
        found.append(Change("order of parts", ", ".join(before), ", ".join(after)))
    return tuple(found)


class _Missing:
    pass


_MISSING = _Missing()


def _compare(name: str, was: Value | _Missing, now: Value | _Missing, found: list[Change]) -> None:
    if isinstance(was, _Missing) or isinstance(now, _Missing):
        shown = [ABSENT if isinstance(side, _Missing) else printable(side) for side in (was, now)]
        found.append(Change(name, *shown))
        return
    if encode(was) == encode(now):
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*now, *(key for key in was if key not in now)]:
            _compare(f"{name}.{key}", was.get(key, _MISSING), now.get(key, _MISSING), found)
        return
    if (
        isinstance(was, Sequence)
        and isinstance(now, Sequence)
        and not isinstance(was, str | bytes)
        and not isinstance(now, str | bytes)
        and len(was) == len(now)
    ):
        for position, (old, new) in enumerate(zip(was, now, strict=True)):
            _compare(f"{name}[{position}]", old, new, found)
        return
    shown = [printable(was), printable(now)]
    if shown[0] == shown[1]:  # 1 and True, or "1" and 1: say the types too
        shown = [f"{text} ({type(side).__name__})" for text, side in zip(shown, (was, now), strict=True)]
    if shown[0] == shown[1]:  # two NaNs, or ["a, b"] and ["a", "b"]
        shown = [json.dumps(to_json(side)) for side in (was, now)]
    found.append(Change(name, *shown))
