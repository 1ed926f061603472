"""The trace rejects a program in which a size is right only for some sizes of the model's inputs."""

from __future__ import annotations

import pytest
import torch

from trtbuild.core.model.spec import NamedDim
from trtbuild.errors import SourceError

#: min, opt and max of each input. a.0 and b.0 have equal ranges, but different opts. So they are not declared alike.
TWO = {"a": ((1, 4), (2, 4), (2, 4)), "b": ((1, 4), (1, 4), (2, 4))}
THREE = {"a": TWO["a"], "b": TWO["a"], "c": TWO["b"]}
ALIKE = {"a": TWO["a"], "b": TWO["a"]}


def error_of(traced, job_of, function, shapes, **job_fields) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(function, job_of(shapes, **job_fields))
    return caught.value


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.where(b > 0, b, a),
        lambda a, b: b.masked_fill(a > 0, 0),
        lambda a, b: a * b,
        lambda a, b: (a * b).sum(),
    ],
)
def test_two_axes_of_1_to_2_that_the_model_combines_must_be_one_dim(traced, job_of, function) -> None:
    """torch.export treats the range 1..2 as the number 2, and reports nothing."""
    error = error_of(traced, job_of, function, TWO)
    assert error.code == "constraint"
    assert "axis b.0 must always be as long as axis a.0, but they are declared as two dims" in error.text
    assert error.hint == "name one dim for all places: dims: {a_0: {at: [a.0, b.0]}}"


def test_only_the_two_equal_axes_of_three_are_reported(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda a, b, c: (a * c, b.relu()), THREE)
    assert "axis c.0 must always be as long as axis a.0" in error.text and "b.0" not in error.text
    assert "must always be as long as" in error_of(traced, job_of, lambda a, b, c: a * b * c, THREE).text


@pytest.mark.parametrize("function", [lambda a, b: a * b, lambda a, b: torch.where(a > 0, a, b)])
def test_axes_of_1_to_2_that_are_declared_alike_become_one_symbol(traced, job_of, function) -> None:
    # symbol 1 (the axis b.0) equals symbol 0 (a.0)
    assert traced(function, job_of(ALIKE)).interface["ties"] == [[1, 0]]


def test_accepts_axes_of_1_to_2_that_are_one_dim_or_are_not_combined(traced, job_of) -> None:
    traced(lambda a, b: a * b, job_of(ALIKE, dims=[NamedDim("n", (("a", 0), ("b", 0)))]))
    traced(lambda a, b: (a * 2, b * 3), job_of(TWO))


def test_rejects_a_slice_that_is_longer_than_the_smallest_size_of_its_axis(traced, job_of) -> None:
    shapes = {"x": ((2, 4), (6, 4), (16, 4))}
    even = [NamedDim("rows", (("x", 0),), 2)]
    for function in (lambda x: x[:3] * 2, lambda x: x[:3].sum(), lambda x: x[x.long()[:3, 0].clamp(0, 1)]):
        error = error_of(traced, job_of, function, shapes, dims=even)
        assert error.code == "changing-size"
        assert "with rows = 2, aten.slice.Tensor gives" in error.text
        assert error.hint.startswith("leave that size out of the profiles")


def test_a_mask_that_indexes_itself_is_not_treated_as_integers(traced, job_of) -> None:
    """The number of selected elements depends on data. The trace does not compare such a size."""
    shapes = {"x": ((2, 4), (6, 4), (16, 4))}
    traced(lambda x: ((m := x > 0)[m].sum(), x * 2), job_of(shapes))
