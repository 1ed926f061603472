"""Recipes: the inputs of a step as ordered, named parts. The step's key is made from them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trtbuild.core.values.codec import optional
from trtbuild.core.values.encoding import Value, encode, encode_list, from_json, json_text, to_json

#: The version of the format of recipes. Every key depends on it.
SCHEMA = "trtbuild.recipe/1"

_ENCODED_SCHEMA = encode(SCHEMA)


@dataclass(frozen=True)
class Recipe:
    """All inputs of a step. Two steps with equal recipes share one result.

    `version` is increased when a change of the code changes the step's output. `parts` has the name and the value of each
    input, in a fixed order.
    """

    stage: str
    version: int
    parts: tuple[tuple[str, Value], ...]

    @cached_property
    def key(self) -> str:
        """SHA-256 (64 hex digits) of the canonical encoding. Raises ValueError if two parts have one name."""
        if len(dict(self.parts)) != len(self.parts):
            names = Counter(name for name, _ in self.parts)
            raise ValueError(f"a recipe names a part twice: {sorted(n for n, count in names.items() if count > 1)}")
        return hashlib.sha256(_ENCODED_SCHEMA + self._encoded()).hexdigest()

    def _encoded(self) -> bytes:
        """The canonical bytes of [stage, version, [[name, value], …]]."""
        parts = encode_list(len(self.parts), self._encoded_parts())
        return encode_list(3, encode(self.stage) + encode(self.version) + parts)

    def _encoded_parts(self) -> bytes:
        # Only `followed_by` stores these bytes, because those of all recipes of a plan would need much memory.
        stored: bytes | None = self.__dict__.get("_stored_parts")
        return b"".join(map(encode, self.parts)) if stored is None else stored

    def followed_by(self, parts: Sequence[tuple[str, Value]]) -> Recipe:
        """This recipe with `parts` added at the end. The result stores its encoded parts, so they are not encoded again."""
        longer = Recipe(self.stage, self.version, (*self.parts, *parts))
        longer.__dict__["_stored_parts"] = self._encoded_parts() + b"".join(map(encode, parts))
        return longer

    def to_json(self) -> dict[str, object]:
        return {
            "stage": self.stage,
            "version": self.version,
            "parts": [[name, to_json(value)] for name, value in self.parts],
        }

    @property
    def text(self) -> str:
        """The text of `to_json`, with sorted keys and without spaces, as in a record's document.

        It is computed at each access, because a stored text would take as much memory as the recipe."""
        parts = ",".join([f"[{json_text(name)},{json_text(value)}]" for name, value in self.parts])
        return f'{{"parts":[{parts}],"stage":{json_text(self.stage)},"version":{self.version}}}'

    @classmethod
    def from_json(cls, data: object) -> Recipe:
        """The inverse of `to_json`. Raises ValueError for `data` of another form. Other members of `data` are ignored."""
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
        """Whether the canonical bytes of both are equal. A cache hit requires equal recipes, not only equal keys."""
        return self is other or self._encoded() == other._encoded()


@dataclass(frozen=True)
class Change:
    """One difference between two recipes of one step, as text.

    `name` is the name that people use for `part`, such as ``layers.2.weight`` for ``weights.w0.sha256``, if there is one.
    """

    part: str
    was: str
    now: str
    name: str | None = optional()


ABSENT = "(absent)"


def printable(value: Value) -> str:
    """`value` as text, for messages. The text is never part of a key."""
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
    """The differences: first the step version, then parts in the order of `now`, then parts that only `was` has.

    If nothing else differs, the order of the parts is a difference.
    Mappings are compared entry by entry, and so are lists of equal length. So a change names the smallest part that
    differs: ``settings.optimization_level``. The result is empty only for equal recipes.
    """
    differences: list[Change] = []
    if was.version != now.version:
        differences.append(Change("step version", str(was.version), str(now.version)))
    before, after = dict(was.parts), dict(now.parts)
    for name in [*after, *(name for name in before if name not in after)]:
        _compare(name, before.get(name, _MISSING), after.get(name, _MISSING), differences)
    if not differences and not was.same_as(now):
        differences.append(Change("order of parts", ", ".join(before), ", ".join(after)))
    return tuple(differences)


class _Missing:
    pass


_MISSING = _Missing()


def _compare(name: str, was: Value | _Missing, now: Value | _Missing, differences: list[Change]) -> None:
    if isinstance(was, _Missing) or isinstance(now, _Missing):
        texts = [ABSENT if isinstance(side, _Missing) else printable(side) for side in (was, now)]
        differences.append(Change(name, *texts))
        return
    if encode(was) == encode(now):
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*now, *(key for key in was if key not in now)]:
            _compare(f"{name}.{key}", was.get(key, _MISSING), now.get(key, _MISSING), differences)
        return
    if (
        isinstance(was, Sequence)
        and isinstance(now, Sequence)
        and not isinstance(was, str | bytes)
        and not isinstance(now, str | bytes)
        and len(was) == len(now)
    ):
        for position, (old, new) in enumerate(zip(was, now, strict=True)):
            _compare(f"{name}[{position}]", old, new, differences)
        return
    texts = [printable(was), printable(now)]
    if texts[0] == texts[1]:  # "true" and True, or "1" and 1: show the types, too
        texts = [f"{text} ({type(side).__name__})" for text, side in zip(texts, (was, now), strict=True)]
    if texts[0] == texts[1]:  # two NaNs, or ["a, b"] and ["a", "b"]
        texts = [json.dumps(to_json(side)) for side in (was, now)]
    differences.append(Change(name, *texts))
