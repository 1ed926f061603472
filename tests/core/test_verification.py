"""Where a verification looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.core.recipes import MODEL
from trtbuild.core.model.shapes import derive, symbol_values
from trtbuild.core.model.spec import Input, Model, NamedDim, Profile, ShapeRange
from trtbuild.core.model.verification import (
    COARSENESS,
    TOLERANCES,
    Point,
    advice,
    coarsest,
    error_text,
    points,
    tf32_hint,
    tolerance_of,
    tolerances,
    worst,
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


def test_the_worst_of_a_cut_is_what_takes_most_of_its_tolerance() -> None:
    exact, coarse = {"error": 8e-6, "tolerance": 1e-5}, {"error": 2e-3, "tolerance": 5e-3}
    cut = {"tolerance": 5e-3, "partitions": [coarse, exact, {"error": None, "tolerance": 1e-5}], "whole": coarse}
    assert worst(cut) == (8e-6, 1e-5)
    old = {"tolerance": 1e-5, "partitions": [{"error": 2e-6}], "whole": {"error": 3e-6}}  # from before entries had one
    assert worst(old) == (3e-6, 1e-5) and tolerance_of(old["whole"], old) == 1e-5  # type: ignore[arg-type]
    assert worst({"tolerance": 0.0, "partitions": [{"error": 0.0}, {"error": 1e-9}], "whole": None}) == (1e-9, 0.0)
    assert worst({"tolerance": 1e-5, "partitions": [], "whole": {"error": None}}) == (0.0, 1e-5)


@pytest.mark.parametrize(
    ("dims", "said"),
    [({"batch": 3}, " at profile rows, min (batch = 3)"), ({}, " at profile rows, min")],
)
def test_how_wrong(dims: dict[str, int], said: str) -> None:
    worst = {"profile": "rows", "which": "min", "dims": dims}
    assert (
        error_text({"error": 0.25, "text": "", "worst": worst}, 1e-5)
        == f"is wrong: 2.5e-01 away (1e-05 is allowed){said}"
    )
    assert "is wrong: shape [1] instead" in error_text(
        {"error": None, "text": "shape [1] instead", "worst": None}, 1e-5
    )


def test_advice() -> None:
    first = {"module": "layers.2", "operator": "aten.add.Tensor", "nodes": [f"n{k}" for k in range(6)]}
    since = {"module": "", "operator": "aten.mul.Tensor", "nodes": []}
    assert advice({"place": None}) == []
    (line,) = advice({"place": {"first": first, "since": first, "error": 0.5, "text": ""}})
    assert line == "first wrong: aten.add.Tensor in layers.2, 5.0e-01 away (ONNX nodes n0, n1, n2 and 3 more)"
    lines = advice({"place": {"first": first, "since": since, "error": None, "text": "dtype"}})
    assert "between aten.mul.Tensor in the model itself and there" in lines[1]


def test_tf32_is_named_where_it_may_be_all_that_is_wrong() -> None:
    entry = {"status": "wrong", "error": 1.1e-3, "text": "", "worst": None, "place": None}
    known, unknown = tf32_hint(entry, 1e-3, True), tf32_hint(entry, 1e-3, None)
    assert known is not None and unknown is not None and unknown.endswith(known) and unknown.startswith("unless it was")
    for said in ("TF32", "`builder: {tf32: false}`", "`--tolerance X`"):
        assert said in known
    assert tf32_hint(entry, 1e-3, False) is None
    assert tf32_hint({**entry, "error": 1e-2}, 1e-3, True) is None
    assert tf32_hint({**entry, "error": None}, 1e-3, True) is None
    assert tf32_hint({**entry, "status": "right"}, 1e-3, True) is None
    assert advice({**entry, "hint": known}) == [known] and advice(entry) == []
