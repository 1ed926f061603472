"""`guard_failures` finds sizes that break guards: conditions on sizes that torch assumes while it traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtbuild.core.model.spec import NamedDim
from trtbuild.stages.trace.export.guards.guard import Guard, guard_failures

SHAPES = {"x": ((1, 4, 3), (8, 8, 3), (64, 32, 3))}
DIMS = [NamedDim("batch", (("x", 0),)), NamedDim("width", (("x", 1),), 4)]


def failures_for(job_of: Callable[..., Any], *guards: str, points: Any = ()) -> Any:
    job = job_of(SHAPES, dims=DIMS)
    arguments = {"x": 0, "args": (0,)}  # 0 is the number of the input
    return guard_failures(guards, arguments, job.shapes, job.inputs, points)


def test_a_guard_that_always_holds_has_no_failure(job_of: Callable[..., Any]) -> None:
    assert not failures_for(job_of, "L['x'].size()[0] >= 1", "L['x'].size()[1] % 4 == 0", "L['x'].size()[2] == 3")


def test_the_failures_are_the_smallest_the_middle_and_the_largest_size_that_break_a_guard(
    job_of: Callable[..., Any],
) -> None:
    first, second, third = failures_for(job_of, "L['x'].size()[1] % 8 == 0")
    assert [failure.sizes for failure in (first, third)] == [(8, 4), (8, 28)] and second.sizes[1] % 8 == 4
    assert first.text == "x.1 % 8 == 0"
    assert first.hint == "write dims: {width: {at: [x.1], multiple_of: 8}}"


def test_a_range_guard_is_reported_as_a_range(job_of: Callable[..., Any]) -> None:
    first, *_ = failures_for(job_of, "L['args'][0].size()[0] > 4")
    assert first.sizes[0] == 1 and first.hint == "change the profiles so that x.0 is at least 5 and at most 64"


def test_a_relation_of_two_dims_has_no_hint(job_of: Callable[..., Any]) -> None:
    first, *_ = failures_for(job_of, "L['x'].size()[0] <= L['x'].size()[1]")
    assert first.sizes[0] > first.sizes[1] and first.hint is None


def test_a_known_point_that_breaks_the_guard_is_the_only_failure(job_of: Callable[..., Any]) -> None:
    (failure,) = failures_for(job_of, "L['x'].size()[0] != 2", points=[(1, 4), (2, 4), (64, 32)])
    assert failure.sizes == (2, 4)


def test_a_known_point_with_size_1_is_not_the_only_failure(job_of: Callable[..., Any]) -> None:
    """Both branches of a model often give the same result at size 1, so failures at other sizes are needed, too."""
    known, *others = failures_for(job_of, "L['x'].size()[0] > 8", points=[(1, 4), (64, 32)])
    assert known.sizes == (1, 4) and known.hint == "change the profiles so that x.0 is at least 9 and at most 64"
    assert others[-1].sizes[0] == 8


def test_a_sample_of_sizes_is_small_for_a_range_of_any_length(job_of: Callable[..., Any]) -> None:
    """torch asks hundreds of questions about strides, each is tried at such a sample, and an axis of audio may have a
    million sizes."""
    job = job_of({"x": ((1, 1), (8, 8), (900_000, 900_000))})

    def sample(code: str) -> Any:
        guard = Guard.parse(code, {"x": 0}, job.shapes, job.inputs)
        assert guard is not None
        return guard.sample()

    holding, failing = sample("L['x'].size()[0] % 8 == 0")
    assert len(holding) + len(failing) == 4_000 and holding[0] == (8,) and failing[0] == (2,)
    holding, failing = sample("L['x'].size()[0] == L['x'].size()[1]")
    assert len(holding) + len(failing) == 36 and failing[0] == (2, 3)


def test_every_guard_has_a_failure_after_many_other_guards(job_of: Callable[..., Any]) -> None:
    guards = [f"L['x'].size()[0] != {size}" for size in range(2, 30)]  # more than `_MAX_NEW_POINTS`
    assert {failure.sizes[0] for failure in failures_for(job_of, *guards)} >= set(range(2, 30))


def test_a_guard_may_contain_conditions_and_functions(job_of: Callable[..., Any]) -> None:
    assert failures_for(job_of, "L['x'].size()[0] % 2 == 0 and max(L['x'].size()[1], 5) < 100")
    assert not failures_for(job_of, "L['x'].size()[1] // 4 >= 1", "math.ceil(L['x'].size()[0] / 2) >= 1")


def test_guards_that_are_not_about_sizes_of_known_axes_are_ignored(job_of: Callable[..., Any]) -> None:
    assert not failures_for(
        job_of, "L['x'].stride()[0] == 1", "L['y'].size()[0] == 1", "not python(", "L['x'].size()[9] == 1"
    )


def test_a_division_by_zero_is_a_broken_guard(job_of: Callable[..., Any]) -> None:
    first, *_ = failures_for(job_of, "8 // (L['x'].size()[0] - 5) < 100")
    assert first.sizes[0] == 5


def test_the_largest_sizes_of_large_ranges_are_tried(job_of: Callable[..., Any]) -> None:
    job = job_of({"x": ((1, 1), (8, 8), (100_000, 100_000))})
    failure, *_ = guard_failures(["L['x'].size()[0] + L['x'].size()[1] < 200000"], {"x": 0}, job.shapes, job.inputs)
    assert failure.sizes == (100_000, 100_000)


def test_a_guard_on_one_dim_is_tried_at_every_size(job_of: Callable[..., Any]) -> None:
    job = job_of({"x": ((1,), (8,), (100_000,))})
    (failure,) = guard_failures((), {"x": 0}, job.shapes, job.inputs, (), ["L['x'].size()[0] - 7000 != 1"])
    assert failure.sizes == (7001,) and failure.hint is None


def test_a_known_point_counts_if_no_tried_size_breaks_the_guard(job_of: Callable[..., Any]) -> None:
    job = job_of({"x": ((1, 1), (8, 8), (100_000, 100_000))})
    guard = "L['x'].size()[0] != 5003 or L['x'].size()[1] != 7001"
    (failure,) = guard_failures([guard], {"x": 0}, job.shapes, job.inputs, [(5003, 7001)])
    assert failure.sizes == (5003, 7001)


def test_every_assumption_has_a_failure_after_many_other_guards(job_of: Callable[..., Any]) -> None:
    """An assumption is a guard that `guard_filter` has removed. `_MAX_NEW_POINTS` does not limit its points."""
    job = job_of({"x": ((1, 1), (8, 8), (64, 64))})
    many_guards = [f"L['x'].size()[1] != {size}" for size in range(2, 30)]  # more than `_MAX_NEW_POINTS`
    assumptions = [f"L['x'].size()[0] != {size}" for size in range(2, 30)]
    failures = guard_failures(many_guards, {"x": 0}, job.shapes, job.inputs, (), assumptions)
    assert {failure.sizes[0] for failure in failures} >= set(range(2, 30))
