"""Records: the recipe and the outputs of a finished step."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import is_digest

#: The version of the record document. Readers refuse any other version.
SCHEMA = "trtbuild.record/1"


@dataclass(frozen=True, slots=True)
class Output:
    """One output blob of a step: its SHA-256 and its size in bytes."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, object]:
        return {"sha256": self.sha256, "size": self.size}


@dataclass(frozen=True, slots=True)
class Record:
    """The recipe, the outputs by name and the provenance (who, when, how long) of a finished step.

    The provenance is not part of the record's identity."""

    recipe: Recipe
    outputs: Mapping[str, Output]
    provenance: Mapping[str, object] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The record's document: JSON in UTF-8 with sorted keys."""
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
        """The record in a document. Raises ValueError if `data` is not a record, or if its key is not that of its recipe.

        If the text of the recipe equals the text of `wanted`, the recipe is not parsed, and the record contains `wanted`.
        """
        try:
            document, recipe = _parse(data, wanted)
            key = recipe.key
        except RecursionError:
            raise ValueError("the record is nested too deeply") from None
        if document.get("key") != key:
            raise ValueError("the record's key is not the key of its recipe")
        outputs, provenance = document.get("outputs"), document.get("provenance")
        if not isinstance(outputs, dict) or not isinstance(provenance, dict):
            raise ValueError("outputs and provenance are objects")
        outputs = {sys.intern(name): _output(name, entry) for name, entry in outputs.items()}
        return cls(
            recipe, outputs, {name: _with_shared_names(item) for name, item in _with_shared_names(provenance).items()}
        )


def _parse(data: bytes, wanted: Recipe | None) -> tuple[Mapping[str, object], Recipe]:
    """The members of a document, and its recipe. Raises ValueError, and RecursionError if `data` is nested too deeply.

    If a document ends with the text of the `wanted` recipe and the schema (`_document_end`), only the other members are
    parsed."""
    if wanted is not None and data.endswith(end := _document_end(wanted)):
        members = json.loads(data[: -len(end)] + b"}")
        if isinstance(members, dict) and members:
            return members, wanted
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"not a {SCHEMA} document")
    return document, Recipe.from_json(document.get("recipe"))


def _document_end(recipe: Recipe) -> bytes:
    """The last bytes of the document of a record with `recipe`.

    A document with this end has exactly this recipe if the bytes before the end, with a brace added, are a JSON object. The
    end is then not inside a string or an inner object, because all of these are closed before the end."""
    return f',"recipe":{recipe.text},"schema":"{SCHEMA}"}}'.encode()


def _with_shared_names(value: Any) -> Any:
    """The mapping `value` with interned names, because a plan keeps thousands of records. Other values are not changed."""
    return {sys.intern(name): item for name, item in value.items()} if type(value) is dict else value


def _output(name: str, entry: object) -> Output:
    if isinstance(entry, dict):
        sha256, size = entry.get("sha256"), entry.get("size")
        if isinstance(sha256, str) and is_digest(sha256) and type(size) is int and size >= 0:
            return Output(sha256, size)
    raise ValueError(f"output {name!r} has no digest or size")
