"""Where a verification looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tests.core.recipe_values import MODEL
from trtbuild.core.model.shapes import derive, symbol_values
from trtbuild.core.model.spec import Input, Model, NamedDim, Profile, ShapeRange
from trtbuild.core.model.verification import (
    COARSENESS,
    TOLERANCES,
    Point,
    coarsest,
    points,
    tolerances,
)


def model(*profiles: tuple[list[int], list[int], list[int]], multiple_of: int = 1) -> Model:
    ranges = [Profile(f"p{k}", (("x", ShapeRange(*map(tuple, each))),)) for k, each in enumerate(profiles)]  # type: ignore[arg-type]
    dims = (NamedDim("height", (("x", 1),), multiple_of),)
    return replace(MODEL, inputs=(Input("x"),), profiles=tuple(ranges), dims=dims)


def points_of(found: Model, **how: int) -> tuple[Point, ...]:
    plan, problems = derive(found.inputs, found.dims, found.profiles)
    assert plan is not None, problems
    return points(found, plan, **how)


TWO = model(([1, 32], [4, 64], [8, 320]), ([8, 64], [8, 64], [16, 64]), multiple_of=32)


def test_min_opt_max_and_random_sizes_of_each_profile() -> None:
    found = points_of(TWO, count=3)
    plan, _ = derive(TWO.inputs, TWO.dims, TWO.profiles)
    assert plan is not None
    assert [(p.profile, p.which) for p in found] == [
        *((0, which) for which in ("min", "opt", "max", "random 1", "random 2", "random 3")),
        *((1, which) for which in ("min", "max", "random 1", "random 2", "random 3")),  # its opt is its min
    ]
    for point in found:
        low, high = (symbol_values(plan, TWO.profiles[point.profile], which) for which in ("min", "max"))
        assert all(a <= size <= b for a, size, b in zip(low, point.sizes, high, strict=True))
        assert point.sizes[1] % 32 == 0


def test_random_sizes_reach_all_there_are() -> None:
    found = {point.sizes for point in points_of(TWO, count=500) if point.profile == 0}
    assert found == set(product(range(1, 9), range(32, 321, 32)))


def test_points_follow_from_the_seed_alone() -> None:
    assert points_of(TWO, seed=3) == points_of(TWO, seed=3)
    one, other = points_of(TWO, seed=3), points_of(TWO, seed=4)
    assert not {point.seed for point in one} & {point.seed for point in other}
    assert [p.sizes for p in one if p.which in ("min", "opt", "max")] == [
        p.sizes for p in other if p.which in ("min", "opt", "max")
    ]
    assert len({point.seed for point in one}) == len(one)


def test_more_points_leave_the_first_ones_as_they_are() -> None:
    few, many = points_of(TWO, count=1), points_of(TWO, count=5)
    assert set(few) <= set(many)


def test_half_of_the_random_points_have_zeros() -> None:
    zeros = {point.which: point.zeros for point in points_of(TWO, count=4) if point.profile == 0}
    assert [which for which, has in zeros.items() if has] == ["random 2", "random 4"]


def test_static_shapes_are_one_point_and_other_values() -> None:
    static = model(([2, 4], [2, 4], [2, 4]))
    assert [(p.which, p.sizes) for p in points_of(static)] == [("min", ()), ("random 1", ()), ("random 2", ())]


def test_points_survive_json() -> None:
    for point in points_of(TWO):
        assert Point.from_json({**point.to_json(), "sizes": list(point.sizes)}) == point


def test_the_golden_points() -> None:
    """A record of a verification names its points: other points for the same seed throw all of them away."""
    assert points_of(TWO, count=2)[3:5] == (
        Point(0, "random 1", (4, 288), 259445913191672),
        Point(0, "random 2", (2, 64), 53896006329206, zeros=True),
    )


def test_a_gpu_may_be_further_away_than_a_cpu() -> None:
    for precision, near in TOLERANCES["onnxruntime"].items():
        assert near < TOLERANCES["engine"][precision]


def test_coarser_types_may_be_further_away() -> None:
    for known in TOLERANCES.values():
        assert list(known) == list(COARSENESS)
        assert sorted(known.values()) == list(known.values())
    assert coarsest([]) == coarsest(["float32"]) == "float32"
    assert coarsest(["float32", "bfloat16", "float16"]) == "bfloat16"
    assert tolerances("engine") == TOLERANCES["engine"]
    assert set(tolerances("engine", 0.25).values()) == {0.25}
