"""Ranges of values that a type can or cannot hold, and error messages about an index that is out of range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trtbuild.core.values.value_ranges import TYPE_LIMITS, InvalidRange, is_index_error, value_range


@pytest.mark.parametrize("dtype", TYPE_LIMITS)
def test_the_limits_are_those_of_the_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    info = torch.finfo(kind) if kind.is_floating_point else torch.iinfo(kind)
    assert TYPE_LIMITS[dtype] == (info.min, info.max)
    assert value_range(dtype, *TYPE_LIMITS[dtype]) == TYPE_LIMITS[dtype]


def test_the_ends_of_a_range_have_the_type_of_the_input() -> None:
    result = value_range("float32", 0, 1)
    assert result == (0.0, 1.0) and all(type(end) is float for end in result)
    assert value_range("int64", 5, 5) == (5, 5)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "text", "hint"),
    [
        ("bool", 0, 1, "a bool input has no range", "leave `range` out"),
        ("int8", 0, 128, "128 is not a value of int8", "from -128 to 127"),
        ("uint8", -1, 5, "-1 is not a value of uint8", "from 0 to 255"),
        ("int64", 0, 2**63, "is not a value of int64", "to 9223372036854775807"),
        ("float16", 0, 65505, "65505 is not a value of float16", "to 65504.0"),
        ("int64", 0, 5.0, "whole numbers, not 5.0", "write 5"),
        ("int64", 0, 5.5, "whole numbers, not 5.5", "write whole numbers"),
        ("int64", 5, 0, "has its largest value first", "write [0, 5]"),
        ("float32", 0, math.inf, "ends at inf", "write numbers"),
        ("float32", math.nan, 1, "ends at nan", "write numbers"),
        ("int64", False, 1, "False in a range", "the smallest and the largest"),
        ("int64", "0", 1, "'0' in a range", "the smallest and the largest"),
    ],
)
def test_an_invalid_range_has_an_error_and_a_hint(dtype: str, low: Any, high: Any, text: str, hint: str) -> None:
    result = value_range(dtype, low, high)
    assert isinstance(result, InvalidRange) and text in result.text and hint in result.hint


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("index out of range in self", True),
        ("index 7 is out of bounds for dimension 0 with size 5", True),
        ("INDICES element is out of DATA bounds, id=9 axis_dim=5", True),
        ("indices element out of data bounds, idx=7 must be within the inclusive range [-5,4]", True),
        ("Dimension out of range (expected to be in range of [-2, 1], but got 3)", False),
        ("out of memory", False),
    ],
)
def test_index_errors_of_operators_are_recognized(message: str, expected: bool) -> None:
    assert is_index_error(message) == expected
