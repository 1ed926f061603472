"""Most guards on two dims are tried at every pair of sizes. Others, such as those with `max`, are tried at a sample."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.stages.trace.conftest import make_job
from trtbuild.core.model.spec import NamedDim
from trtbuild.stages.trace.export.guards.guard import Guard

X, Y = "L['x'].size()[0]", "L['x'].size()[1]"


def failing_sizes(guard: str, low: tuple[int, int], high: tuple[int, int], multiple_of: int = 1) -> Any:
    dims = [NamedDim("width", (("x", 1),), multiple_of)]
    job = make_job({"x": (low, low, high)}, dims=dims)
    parsed = Guard.parse(guard, {"x": 0}, job.shapes, job.inputs)
    assert parsed is not None
    return parsed.failing_sizes()


@pytest.mark.parametrize(
    ("guard", "failing"),
    [
        (f"{X} != {Y} + 511", (712, 201)),
        (f"{X} * 3 - {Y} != 1 + 2 * 3 * 100", (351, 452)),
        (f"{X} * {Y} != 997 * 991", (991, 997)),
        (f"{X} * {X} != 7 * {Y}", (161, 3703)),
        (f"({X} // 14) * ({Y} // 14) != 1369", (518, 518)),
        (f"({X} + {Y}) % 4999 != 0", (1299, 3700)),
    ],
)
def test_finds_the_few_pairs_at_which_a_guard_fails(guard: str, failing: tuple[int, int]) -> None:
    low, high = (150, 150), (4000, 4000)
    sizes = failing_sizes(guard, low, high)
    assert sizes and failing in failing_sizes(guard, failing, (failing[0] + 1, failing[1] + 1))
    assert all(150 <= size <= 4000 for pair in sizes for size in pair)


def test_every_pair_of_very_large_ranges_is_tried_if_the_guard_is_linear_in_one_dim() -> None:
    assert failing_sizes(f"{X} + 17 != {Y} * 2", (1, 1), (10_000_000, 40_000)) != []
    assert failing_sizes(f"{X} + 17 != {Y} * 2 + 100_000_000", (1, 1), (10_000_000, 40_000)) == []


def test_sizes_that_are_not_multiples_are_not_tried() -> None:
    assert failing_sizes(f"{X} != {Y} + 511", (512, 4), (513, 400), 4) == []
    assert failing_sizes(f"{X} // 2 != {Y} // 2 * 2 + 251", (508, 4), (509, 400), 4) == []


def test_the_pairs_of_small_ranges_are_those_of_an_exhaustive_search() -> None:
    draw = random.Random(0)
    for _ in range(200):
        a, b, c = (draw.randint(-4, 4) for _ in range(3))
        comparison = draw.choice(["==", "!=", "<", "<=", ">", ">="])
        x, y = draw.choice([(X, Y), (f"{X} * {Y}", Y), (f"{X} * {X}", Y), (f"{X} // 3", Y), (X, f"{Y} % 3")])
        guard = f"{a} * ({x}) + {c} {comparison} {b} * ({y})"
        found = failing_sizes(guard, (1, 2), (6, 9))
        values = {X: "p", Y: "q"}
        text = guard.replace(X, values[X]).replace(Y, values[Y])
        expected = {(p, q) for p, q in itertools.product(range(1, 7), range(2, 10)) if not eval(text, {"p": p, "q": q})}
        assert set(found) <= expected and bool(found) == bool(expected) and found == sorted(found), guard


def test_a_guard_with_floats_is_computed_by_python() -> None:
    sizes = itertools.product(range(1, 61), repeat=2)
    assert failing_sizes(f"{X} / 3 + {Y} * 0.1 != 7.3", (1, 1), (60, 60)) == [
        (x, y) for x, y in sizes if x / 3 + y * 0.1 == 7.3
    ]


def test_a_guard_with_a_function_is_tried_at_a_sample_of_sizes() -> None:
    assert failing_sizes(f"max({X}, {Y}) < 4000", (1, 1), (4000, 4000))
