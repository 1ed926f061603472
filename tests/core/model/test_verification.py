"""The points at which a verification compares results, and the tolerances."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.core.recipe_values import MODEL
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import profile_sizes
from trtbuild.core.model.spec import Input, Model, NamedDim, Profile, ShapeRange
from trtbuild.core.model.verification import (
    TOLERANCES,
    TYPES_BY_COARSENESS,
    Point,
    RoundedType,
    coarsest_precision,
    points_of_model,
    tolerances,
)


def model(*profiles: tuple[list[int], list[int], list[int]], multiple_of: int = 1) -> Model:
    ranges = [Profile(f"p{k}", (("x", ShapeRange(*map(tuple, each))),)) for k, each in enumerate(profiles)]  # type: ignore[arg-type]
    dims = (NamedDim("height", (("x", 1),), multiple_of),)
    return replace(MODEL, inputs=(Input("x"),), profiles=tuple(ranges), dims=dims)


def points_of(spec: Model, **options: int) -> tuple[Point, ...]:
    plan, problems = derive(spec.inputs, spec.dims, spec.profiles)
    assert plan is not None, problems
    return points_of_model(spec, plan, **options)


TWO_PROFILES = model(([1, 32], [4, 64], [8, 320]), ([8, 64], [8, 64], [16, 64]), multiple_of=32)


def test_the_points_are_min_opt_max_and_random_sizes_of_each_profile() -> None:
    found = points_of(TWO_PROFILES, count=3)
    plan, _ = derive(TWO_PROFILES.inputs, TWO_PROFILES.dims, TWO_PROFILES.profiles)
    assert plan is not None
    assert [(p.profile, p.which) for p in found] == [
        *((0, which) for which in ("min", "opt", "max", "random 1", "random 2", "random 3")),
        *((1, which) for which in ("min", "max", "random 1", "random 2", "random 3")),  # opt equals min in this profile
    ]
    for point in found:
        low, high = (profile_sizes(plan, TWO_PROFILES.profiles[point.profile], which) for which in ("min", "max"))
        assert all(a <= size <= b for a, size, b in zip(low, point.sizes, high, strict=True))
        assert point.sizes[1] % 32 == 0


def test_random_sizes_include_every_allowed_size() -> None:
    found = {point.sizes for point in points_of(TWO_PROFILES, count=500) if point.profile == 0}
    assert found == set(product(range(1, 9), range(32, 321, 32)))


def test_points_follow_from_the_seed_alone() -> None:
    assert points_of(TWO_PROFILES, seed=3) == points_of(TWO_PROFILES, seed=3)
    first, second = points_of(TWO_PROFILES, seed=3), points_of(TWO_PROFILES, seed=4)
    assert not {point.seed for point in first} & {point.seed for point in second}
    assert [p.sizes for p in first if p.which in ("min", "opt", "max")] == [
        p.sizes for p in second if p.which in ("min", "opt", "max")
    ]
    assert len({point.seed for point in first}) == len(first)


def test_a_larger_count_keeps_the_first_points() -> None:
    few, many = points_of(TWO_PROFILES, count=1), points_of(TWO_PROFILES, count=5)
    assert set(few) <= set(many)


def test_half_of_the_random_points_have_zeros() -> None:
    zeros = {point.which: point.zeros for point in points_of(TWO_PROFILES, count=4) if point.profile == 0}
    assert [which for which, has in zeros.items() if has] == ["random 2", "random 4"]


def test_static_shapes_are_compared_at_min_and_with_random_values() -> None:
    static = model(([2, 4], [2, 4], [2, 4]))
    assert [(p.which, p.sizes) for p in points_of(static)] == [("min", ()), ("random 1", ()), ("random 2", ())]


def test_the_points_of_a_seed_are_the_same_in_every_version() -> None:
    """If a later version chose other points for a seed, it could not use the records of earlier verifications."""
    assert points_of(TWO_PROFILES, count=2)[3:5] == (
        Point(0, "random 1", (4, 288), 259445913191672),
        Point(0, "random 2", (2, 64), 53896006329206, zeros=True),
    )


def test_tolerances_are_larger_for_engines_than_for_onnxruntime() -> None:
    """Types of 4 bits have one tolerance for both. The comment of `TOLERANCES` gives the reason."""
    for precision, tolerance in TOLERANCES["onnxruntime"].items():
        assert tolerance <= TOLERANCES["engine"][precision]
        assert tolerance < TOLERANCES["engine"][precision] or precision in ("float4e2m1", "int4")


def rounded(values: np.ndarray, numbers: np.ndarray, block: int) -> np.ndarray:
    """Return `values`, rounded to the nearest of `numbers` times a scale.

    Each block of `block` values has the scale with which the largest of `numbers` is the block's largest absolute value. If
    `block` is 0, all values have one scale, with which the largest of `numbers` is 4: four standard deviations."""
    blocks = values.reshape(-1, block or values.size)
    largest = np.abs(blocks).max(1, keepdims=True) if block else 4
    steps = numbers / numbers.max()
    scaled = np.clip(blocks / largest, -1, 1)
    above = np.clip(np.searchsorted(steps, scaled), 1, len(steps) - 1)
    nearest = np.where(scaled - steps[above - 1] < steps[above] - scaled, steps[above - 1], steps[above])
    return (nearest * largest).reshape(-1)


def floats(exponents: range, mantissa_bits: int, largest: float) -> np.ndarray:
    """Return the numbers of a small floating type in ascending order. The first exponent is that of subnormal numbers."""
    steps = 1 << mantissa_bits
    positive = {(1 + k / steps) * 2.0**exponent for exponent in exponents for k in range(steps)}
    positive |= {k / steps * 2.0 ** exponents[0] for k in range(steps)}
    return np.array(sorted({sign * number for number in positive if number <= largest for sign in (-1, 1)}))


@pytest.mark.parametrize(
    ("type_", "numbers", "block"),
    [
        ("int8", np.arange(-127, 128), 0),
        ("float8e4m3fn", floats(range(-6, 9), 3, 448), 0),
        ("float8e5m2", floats(range(-14, 16), 2, 57344), 0),
        ("float4e2m1", floats(range(3), 1, 6), 16),
        ("int4", np.arange(-7, 8), 128),
    ],
)
def test_the_tolerance_of_a_quantizer_is_three_standard_deviations_of_two_roundings(
    type_: RoundedType, numbers: np.ndarray, block: int
) -> None:
    """docs/quantization.md derives this rule."""
    values = np.random.default_rng(0).standard_normal(1 << 18)
    one_rounding = np.sqrt(np.mean((rounded(values, numbers, block) - values) ** 2))
    assert TOLERANCES["onnxruntime"][type_] == pytest.approx(3 * math.sqrt(2) * one_rounding, rel=0.05)


def test_tolerances_of_coarser_types_are_not_smaller() -> None:
    for by_precision in TOLERANCES.values():
        assert list(by_precision) == list(TYPES_BY_COARSENESS)
        assert sorted(by_precision.values()) == list(by_precision.values())
    assert coarsest_precision([]) == coarsest_precision(["float32"]) == "float32"
    assert coarsest_precision(["float32", "bfloat16", "float16"]) == "bfloat16"
    assert tolerances("engine") == TOLERANCES["engine"]
    assert set(tolerances("engine", 0.25).values()) == {0.25}
