"""The canonical encoding, checked by an independent decoder and by values whose encodings must differ."""

from __future__ import annotations

import enum
import json
import math
import struct
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.core.values.encoding import (
    Shared,
    Value,
    digest,
    encode,
    from_json,
    json_text,
    key_order,
    to_json,
    to_json_in_order,
)

TEXT = st.text(st.characters(codec=None), max_size=8)  # any code point, including lone surrogates
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), TEXT, st.binary(max_size=8))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


def typed(value: Any) -> Any:
    """Return a form of `value` whose ``==`` compares types, the bits of floats, and mappings without their order."""
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, dict):
        return ("mapping", frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(typed(item) for item in value))
    return (type(value).__name__, value)


def decode(data: bytes) -> Any:
    """Decode an encoding without the code of `encode`. Fail if bytes remain or a length is wrong."""
    value, end = _decode(data, 0)
    assert end == len(data)
    return value


def _decode(data: bytes, offset: int) -> tuple[Any, int]:
    tag, offset = data[offset : offset + 1], offset + 1
    if tag in b"NTF":
        return {b"N": None, b"T": True, b"F": False}[tag], offset
    if tag == b"D":
        return struct.unpack(">d", data[offset : offset + 8])[0], offset + 8
    size, offset = int.from_bytes(data[offset : offset + 8], "big"), offset + 8
    if tag in b"ISB":
        body, end = data[offset : offset + size], offset + size
        assert len(body) == size
        if tag == b"I":
            return int(body), end
        return (body.decode("utf-8", "surrogatepass") if tag == b"S" else body), end
    items = []
    for _ in range(size * (2 if tag == b"M" else 1)):
        item, offset = _decode(data, offset)
        items.append(item)
    if tag == b"L":
        return items, offset
    assert tag == b"M"
    return dict(zip(items[::2], items[1::2], strict=True)), offset


@given(VALUES)
def test_encoded_values_are_decoded(value: Value) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(VALUES, VALUES)
def test_two_values_share_an_encoding_only_if_they_are_equal(first: Value, second: Value) -> None:
    assert (encode(first) == encode(second)) == (typed(first) == typed(second))


def test_values_of_different_types_have_different_encodings() -> None:
    values: list[Value] = [1, 1.0, True, "1", b"1", [1], {"1": 1}, "", None, b"", [], {}, 0, 0.0, False, [None], [[]]]
    assert len({encode(value) for value in values}) == len(values)


def test_moving_text_between_neighbouring_values_changes_the_encoding() -> None:
    values: list[Value] = [
        ["ab", "c"],
        ["a", "bc"],
        ["abc"],
        [["a"], "bc"],
        "abc",
        ["a", ["b", "c"]],
        [["a", "b"], "c"],
    ]
    assert len({encode(value) for value in values}) == len(values)


def test_floats_are_encoded_by_their_bits() -> None:
    nans = [
        struct.unpack(">d", bytes.fromhex(bits))[0]
        for bits in ("7ff8000000000000", "7ff8000000000001", "fff8000000000000")
    ]
    values = [0.0, -0.0, math.inf, -math.inf, 5e-324, 2.2250738585072014e-308, 1.0, math.nextafter(1.0, 2.0), *nans]
    assert len({encode(value) for value in values}) == len(values)
    assert encode(math.nan) == encode(math.nan)


@given(st.dictionaries(TEXT, SCALARS, max_size=6), st.randoms())
def test_the_order_of_a_mapping_does_not_matter(value: dict[str, Value], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert encode(dict(items)) == encode(value) == encode(MappingProxyType(value))


def test_the_order_of_a_list_matters_and_a_tuple_is_a_list() -> None:
    assert encode([1, 2]) != encode([2, 1])
    assert encode((1, 2)) == encode([1, 2])


def test_file_names_that_are_not_utf_8_differ() -> None:
    escaped = b"\xc3\xa9".decode("ascii", "surrogateescape")
    assert encode(escaped) != encode("é")
    assert encode("\ud83d\ude00") != encode("😀")


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    pass


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset(),
        object(),
        1j,
        range(3),
        bytearray(b"x"),
        memoryview(b"x"),
        np.float64(1.0),
        np.float32(1.0),
        np.int64(1),
        np.bool_(True),
        np.str_("x"),
        np.zeros(2),
        Colour.RED,
        Name("x"),
        iter([1]),
        {1: 2},
        {None: 2},
        {Name("x"): 2},
        {"x": {1}},
        [object()],
    ],
    ids=lambda value: type(value).__name__,
)
def test_rejects_values_without_an_encoding(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize("value", [{1, 2}, object(), np.float64(1.0), Colour.RED, range(3), {1: 2}])
def test_rejects_values_without_a_json_form(value: Any) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_a_digest_belongs_to_its_domain() -> None:
    assert digest("recipe", ["a"]) != digest("blob", ["a"])
    assert len(digest("recipe", None)) == 64


#: Text without surrogates: JSON would join a high and a low surrogate into one character. No file name has both.
JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), JSON_TEXT, st.binary(max_size=8))
MARKED = JSON_TEXT | st.sampled_from(["$f64", "$bytes", "$map", "$"])
JSON_VALUES = st.recursive(
    JSON_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MARKED, inner, max_size=4), max_leaves=12
)


@given(JSON_VALUES)
def test_a_value_is_read_back_from_its_json_form(value: Value) -> None:
    assert encode(from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))) == encode(value)


def test_an_undecodable_byte_is_read_back_from_json() -> None:
    name = b"weights-\xff.bin".decode("utf-8", "surrogateescape")
    assert from_json(json.loads(json.dumps(to_json(name)))) == name


def test_the_json_form_of_a_mapping_is_sorted() -> None:
    """Two mappings that differ only in their order are equal values, and equal values have equal JSON forms."""
    value: Value = {"relu": 1, "conv": {"b": 1, "a": 2}}
    form = to_json(value)
    assert isinstance(form, dict)
    assert list(form) == ["conv", "relu"]
    assert list(form["conv"]) == ["a", "b"]
    assert to_json({"$b": 1, "a": 2}) == to_json({"a": 2, "$b": 1})


@pytest.mark.parametrize(
    "data",
    [
        1.5,
        {"$f64": 1},
        {"$f64": "00"},
        {"$f64": "zz" * 8},
        {"$f64": "00 00 00 00 0000"},  # 16 characters, but 6 bytes
        {"$f64": "00" * 8, "x": 1},
        {"$bytes": 1},
        {"$bytes": "x"},
        {"$map": 1},
        {"$map": [1]},
        {"$map": [["a"]]},
        {"$map": [[1, 2]]},
        {"$map": [["a", 1.5]]},
        {"$other": 1},
        [1.5],
        {"a": 1.5},
        object(),
    ],
    ids=lambda data: "object" if type(data) is object else repr(data),
)
def test_rejects_invalid_json_forms(data: Any) -> None:
    with pytest.raises(ValueError):
        from_json(data)


def test_from_json_does_not_change_its_argument() -> None:
    data = {"$f64": "3ff0000000000000"}
    assert from_json(data) == from_json(data) == 1.0


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_a_shared_mapping_is_encoded_like_a_mapping(value: dict[str, Value]) -> None:
    shared = Shared(value)
    for _ in range(2):  # the encoding is computed the first time, and stored
        assert encode(shared) == encode(value)
        assert encode([shared, {"a": shared}]) == encode([value, {"a": value}])
        assert json_text(shared) == json_text(value)


@given(VALUES)
def test_the_text_of_a_value_is_its_json_form(value: Value) -> None:
    assert json_text(value) == json.dumps(to_json(value), sort_keys=True, separators=(",", ":"))


@given(JSON_VALUES)
def test_the_order_of_mappings_is_read_back_from_json(value: Value) -> None:
    read = from_json(json.loads(json.dumps(to_json_in_order(value), sort_keys=True)))
    assert encode(read) == encode(value)
    assert key_order(read) == key_order(value)


def test_the_order_of_keys_is_empty_for_sorted_mappings() -> None:
    assert key_order({"a": 1, "b": [{"c": 1, "d": 2}]}) == []
    assert key_order({"a": 1, "b": [{"d": 1, "c": 2}]}) == [["a", "b"], ["d", "c"]]
