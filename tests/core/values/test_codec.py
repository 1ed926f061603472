"""Encoding jobs and results as JSON, and decoding them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from trtbuild.core.values.codec import decode, encode, optional


@dataclass(frozen=True)
class Inner:
    shape: tuple[int, ...]
    name: str = "x"


@dataclass(frozen=True)
class Custom:
    text: str

    def to_json(self) -> str:
        return self.text

    @classmethod
    def from_json(cls, data: str) -> Custom:
        return cls(data)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    kind: Literal["a", "b"]
    pairs: tuple[tuple[str, float], ...] = ()
    table: Mapping[str, Inner] = field(default_factory=dict)
    maybe: Inner | None = None
    own: Custom | None = None
    anything: Any = None
    ends: tuple[int, int] | tuple[float, float] | None = None


ALL_FIELDS = Outer(
    Inner((1, 2)), "b", (("x", 1.5),), {"k": Inner(())}, Inner((3,), "y"), Custom("text"), [1, {"a": None}], (0, 0.5)
)


@pytest.mark.parametrize("value", [ALL_FIELDS, Outer(Inner(()), "a")])
def test_an_encoded_value_is_decoded(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(value)))) == value


@dataclass(frozen=True, kw_only=True)
class Sparse:
    start: str | None = optional("from")
    end: str


def test_an_optional_field_is_left_out_and_has_its_name_in_json() -> None:
    assert encode(Sparse(end="b")) == {"end": "b"}
    assert list(encode(Sparse(start="a", end="b")).items()) == [("from", "a"), ("end", "b")]
    assert decode(Sparse, {"from": "a", "end": "b"}) == Sparse(start="a", end="b")
    with pytest.raises(ValueError, match="has no field start"):
        decode(Sparse, {"start": "a", "end": "b"})


def test_a_missing_field_has_its_default() -> None:
    assert decode(Outer, {"inner": {"shape": [1]}, "kind": "a"}) == Outer(Inner((1,)), "a")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"shape": [1], "nmae": "x"}, ValueError),
        ({"shape": ["1"]}, TypeError),
        ({"shape": [True]}, TypeError),
        ({"shape": "12"}, TypeError),
        ({}, TypeError),
        ([1], TypeError),
        (None, TypeError),
    ],
)
def test_rejects_data_that_does_not_fit_the_type(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(Inner, data)


def test_rejects_a_value_that_is_not_in_the_literal() -> None:
    with pytest.raises(ValueError, match="'c' is not one of"):
        decode(Outer, {"inner": {"shape": []}, "kind": "c"})


def test_an_integer_that_no_float_can_hold_is_rejected() -> None:
    assert decode(Outer, {"inner": {"shape": []}, "kind": "a", "pairs": [["x", 2]]}).pairs == (("x", 2),)
    with pytest.raises(ValueError, match="too large"):
        decode(Outer, {"inner": {"shape": []}, "kind": "a", "pairs": [["x", 10**400]]})


@dataclass(frozen=True)
class Limited:
    limit: Mapping[str, int] | int


def test_the_second_type_of_a_union_is_tried_after_any_error_of_the_first() -> None:
    assert decode(Limited, {"limit": 4}) == Limited(4)


@dataclass(frozen=True)
class Listed:
    parts: Sequence[Inner]


def test_a_sequence_of_dataclasses_is_decoded() -> None:
    value = Listed([Inner((1, 2)), Inner((), "y")])
    assert decode(Listed, json.loads(json.dumps(encode(value)))) == value
    with pytest.raises(TypeError, match="expected a list"):
        decode(Listed, {"parts": "a"})
