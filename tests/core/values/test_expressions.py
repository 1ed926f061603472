"""Size expressions: the interval of an expression contains all its values."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.core.values.expressions import (
    Expression,
    Interval,
    depends_on_data,
    evaluate,
    expression_text,
    interval,
    symbols_of,
)

BINARY = ["floordiv", "ceildiv", "mod", "pow"]
SEVERAL = ["add", "mul", "max", "min"]
SYMBOLS = 3

LEAVES = st.integers(-12, 12) | st.integers(0, SYMBOLS - 1).map(lambda k: ["sym", k])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from(SEVERAL), st.lists(inner, min_size=1, max_size=3)).map(lambda e: [e[0], *e[1]])
        | st.tuples(st.sampled_from(BINARY), inner, inner).map(list)
    ),
    max_leaves=6,
)
INTERVALS = st.tuples(st.integers(-6, 9), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def value_at(expression: Expression, symbols: tuple[int, ...]) -> int | None:
    try:
        return evaluate(expression, symbols)
    except ValueError:
        return None


@settings(max_examples=300)
@given(EXPRESSIONS, st.lists(INTERVALS, min_size=SYMBOLS, max_size=SYMBOLS))
def test_the_interval_contains_every_value(expression: Any, symbols: list[Interval]) -> None:
    low, high = interval(expression, symbols)
    for point in itertools.product(*(range(first, last + 1) for first, last in symbols)):
        value = value_at(expression, point)
        assert value is None or low <= value <= high, point


@pytest.mark.parametrize("operator", BINARY)
def test_the_interval_of_each_binary_operator_contains_every_value_also_for_negative_operands(operator: str) -> None:
    ends = [-4, -3, -1, 0, 1, 2, 5]
    ranges = [(low, high) for low, high in itertools.combinations_with_replacement(ends, 2)]
    for left, right in itertools.product(ranges, ranges):
        low, high = interval([operator, ["sym", 0], ["sym", 1]], [left, right])
        for point in itertools.product(range(left[0], left[1] + 1), range(right[0], right[1] + 1)):
            value = value_at([operator, ["sym", 0], ["sym", 1]], point)
            assert value is None or low <= value <= high, (left, right, point)


@pytest.mark.parametrize(
    ("expression", "symbols", "expected"),
    [
        (["add", 10, ["mul", -1, ["sym", 0]]], [(1, 8)], (2, 9)),
        (["floordiv", ["add", ["sym", 0], -3], 2], [(1, 8)], (-1, 2)),
        (["ceildiv", ["sym", 0], 3], [(1, 8)], (1, 3)),
        (["mod", ["sym", 0], 4], [(1, 8)], (0, 3)),
        (["mod", ["sym", 0], 16], [(1, 8)], (1, 8)),
        (["mod", ["sym", 0], -4], [(1, 8)], (-3, 0)),
        (["pow", ["sym", 0], 2], [(2, 8)], (4, 64)),
        (["max", ["sym", 0], 5], [(2, 8)], (5, 8)),
        (["min", ["sym", 0], 5], [(2, 8)], (2, 5)),
        (["mul", ["sym", 0], ["sym", 1]], [(2, 3), (4, 5)], (8, 15)),
        (["floordiv", 60, ["sym", 0]], [(2, 8)], (7, 30)),
        (["floordiv", 60, ["sym", 0]], [(0, 8)], (7, 60)),
        (["add", ["sym", 0], ["mul", -1, ["sym", 0]]], [(1, 8)], (-7, 7)),  # correct, but wider than necessary
    ],
    ids=json.dumps,
)
def test_bounds_of_the_usual_sizes(expression: Any, symbols: list[Interval], expected: Interval) -> None:
    assert interval(expression, symbols) == expected


def test_the_bounds_of_a_modulo_are_not_its_values_at_min_and_max() -> None:
    size: Expression = ["add", 1, ["mod", ["sym", 0], 8]]
    assert (evaluate(size, [1]), evaluate(size, [8])) == (2, 1)
    assert interval(size, [(1, 8)]) == (1, 8)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        (["sym", 1], 20),
        (["add", 1, 2, 3], 6),
        (["mul", 2, 3, ["sym", 0]], 60),
        (["floordiv", -7, 2], -4),
        (["ceildiv", 7, 2], 4),
        (["ceildiv", -7, 2], -3),
        (["mod", -7, 4], 1),
        (["mod", 7, -4], -1),
        (["pow", 2, 10], 1024),
        (["pow", -1, 1001], -1),
        (["max", 1, ["sym", 0]], 10),
        (["min", 1, ["sym", 0]], 1),
    ],
    ids=json.dumps,
)
def test_evaluates_an_expression(expression: Any, value: int) -> None:
    assert evaluate(expression, [10, 20]) == value


@pytest.mark.parametrize(
    "expression",
    [
        ["data", 0],
        ["add", 1, ["data", 0]],
        ["floordiv", 1, 0],
        ["ceildiv", 1, 0],
        ["mod", 1, 0],
        ["pow", 2, -1],
        ["pow", 2, 2**31],
        ["pow", ["pow", 2, 60], 100],
        ["xor", 1, 2],
        ["floordiv", 1],
        ["sym", "0"],
        ["sym"],
        ["add", "1"],
    ],
    ids=json.dumps,
)
def test_rejects_expressions_without_a_value(expression: Any) -> None:
    with pytest.raises(ValueError):
        evaluate(expression, [1])


@pytest.mark.parametrize("expression", [["xor", 1, 2], ["sym", "0"], ["sym"], ["add", "1"], ["mod", 1]], ids=json.dumps)
def test_rejects_expressions_without_bounds(expression: Any) -> None:
    with pytest.raises(ValueError):
        interval(expression, [(1, 2)])


def test_the_bounds_of_sizes_that_depend_on_data() -> None:
    assert interval(["data", 0], [])[0] == 0
    assert interval(["pow", ["data", 0], ["data", 0]], [])[1] >= 2**31 - 1  # the exponent is limited


def test_symbols_and_data_dependence_of_an_expression() -> None:
    size: Any = ["add", 3, ["mul", ["sym", 0], ["sym", 2]], ["data", 1]]
    assert symbols_of(size) == {0, 2}
    assert depends_on_data(size)
    assert not depends_on_data(["add", ["sym", 1], 2])
    assert (symbols_of(4), depends_on_data(4)) == (frozenset(), False)


def test_powers_of_powers_are_refused_at_once() -> None:
    """A damaged package index can contain any expression. The value of `tower` would have about 63^8 digits."""
    tower: Any = 9
    for _ in range(8):
        tower = ["pow", tower, 63]
    with pytest.raises(ValueError, match="is not a size"):
        evaluate(tower, [])
    assert evaluate(["pow", 3, 4], []) == 81


HEIGHT, ROWS = ["sym", 1], ["sym", 0]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (ROWS, "rows"),
        (["mul", 2, ROWS], "2*rows"),
        (["mul", 32, HEIGHT], "height"),
        (["mul", 64, HEIGHT], "2*height"),
        (["mul", 16, HEIGHT], "16*(height//32)"),
        (HEIGHT, "height//32"),
        (["add", ["mul", 32, HEIGHT], 1], "height+1"),
        (["mul", 2, ["add", ROWS, 1]], "2*(rows+1)"),
        (["mul", 32, ROWS, HEIGHT], "rows*height"),
        (["floordiv", ["add", ROWS, 1], 2], "(rows+1)//2"),
        (["max", ROWS, 3], "max(rows, 3)"),
        (["data", 0], "data(0)"),
        (["sym", 2], "s2"),
    ],
    ids=json.dumps,
)
def test_a_size_is_written_with_the_sizes_of_dims_not_with_symbols(expression: Any, text: str) -> None:
    """The symbol of the dim ``height`` counts units of 32: the size of the dim is 32 times the symbol."""
    assert expression_text(expression, ["rows", "height"], [1, 32]) == text


def test_without_units_a_size_is_written_with_all_its_factors() -> None:
    assert expression_text(["mul", 32, HEIGHT], ["rows", "height"]) == "32*height"
