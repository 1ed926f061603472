"""Encoded dataclasses match their JSON Schemas, and wrong documents do not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import pytest

from trtbuild.core.values.codec import encode, optional
from trtbuild.core.values.json_schema import DIALECT, schema_of


@dataclass(frozen=True)
class Part:
    """A part."""

    size: int
    source: str | None = optional("from")


@dataclass(frozen=True, kw_only=True)
class Whole:
    """All of it."""

    schema: Literal["whole/1"] = "whole/1"
    parts: Sequence[Part]
    table: Mapping[str, float]
    pair: tuple[str, int]
    maybe: Part | None = None


def schema() -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    return {"$schema": DIALECT, **schema_of(Whole, definitions), "$defs": definitions}


def test_encoded_documents_match_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for whole in (
        Whole(parts=[], table={}, pair=("a", 1)),
        Whole(parts=[Part(1), Part(2, "x")], table={"a": 1.5}, pair=("a", 1), maybe=Part(3)),
    ):
        jsonschema.validate(encode(whole), schema())
    assert schema()["$defs"]["Whole"]["description"] == "All of it."


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": "whole/2"},
        {"parts": [{}]},
        {"parts": [{"size": 1, "from": None}]},
        {"table": {"a": "b"}},
        {"pair": ["a"]},
        {"pair": ["a", 1, 2]},
        {"maybe": 1},
    ],
)
def test_rejects_documents_that_do_not_match(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**encode(Whole(parts=[], table={}, pair=("a", 1))), **wrong}, schema())


def test_a_type_without_a_schema_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no JSON Schema"):
        schema_of(bytes, {})
