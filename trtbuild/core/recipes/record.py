"""Records: what a finished step left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtbuild.core.recipes.recipe import Recipe

#: Version of the record document. A reader refuses a newer one.
SCHEMA = "trtbuild.record/1"

_HEX64 = re.compile(r"[0-9a-f]{64}")


def is_digest(text: object) -> bool:
    """Whether `text` is a SHA-256 in lower-case hex."""
    return isinstance(text, str) and _HEX64.fullmatch(text) is not None


@dataclass(frozen=True)
class Output:
    """One blob that a step left: its SHA-256 and its size in bytes."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, object]:
        return {"sha256": self.sha256, "size": self.size}


@dataclass(frozen=True)
class Record:
    """The recipe that was followed, the outputs by name, and provenance (who, when, how long: identifies nothing)."""

    recipe: Recipe
    outputs: Mapping[str, Output]
    provenance: Mapping[str, object] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The record document: JSON, UTF-8, keys sorted."""
        document = {
            "schema": SCHEMA,
            "key": self.recipe.key,
            "recipe": self.recipe.to_json(),
            "outputs": {name: output.to_json() for name, output in self.outputs.items()},
            "provenance": dict(self.provenance),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, wanted: Recipe | None = None) -> Record:
        """Raises ValueError when `data` is not a well-formed record whose key is its recipe's.

        Where its recipe is the `wanted` one to the letter, it is not read again: the record has `wanted` itself.
        """
        try:
            document = json.loads(data)
        except RecursionError:
            raise ValueError("a record is not nested that deeply") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        if wanted is not None and data.endswith(_end(wanted)):
            recipe = wanted
        else:
            recipe = Recipe.from_json(document.get("recipe"))
        if document.get("key") != recipe.key:
            raise ValueError("the record's key is not its recipe's")
        outputs, provenance = document.get("outputs"), document.get("provenance")
        if not isinstance(outputs, dict) or not isinstance(provenance, dict):
            raise ValueError("outputs and provenance are objects")
        return cls(recipe, {name: _output(name, entry) for name, entry in outputs.items()}, provenance)


def _end(recipe: Recipe) -> bytes:
    """How the document of a record of `recipe` ends. A document that is JSON and ends so has exactly this recipe: what
    is before the end is no open string, for else the recipe's first quote would close it and JSON would end there; and
    the recipe is whole, so the brace behind the schema is the document's own."""
    return f',"recipe":{recipe.text},"schema":"{SCHEMA}"}}'.encode()


def _output(name: str, entry: object) -> Output:
    if isinstance(entry, dict):
        sha256, size = entry.get("sha256"), entry.get("size")
        if isinstance(sha256, str) and is_digest(sha256) and type(size) is int and size >= 0:
            return Output(sha256, size)
    raise ValueError(f"output {name!r} has no digest or size")
