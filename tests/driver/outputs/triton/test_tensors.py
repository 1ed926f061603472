"""Types, dims and the batch of a model configuration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.outputs.triton.repositories import B, H, configurations, one_engine, profile, tensor, typed
from trtbuild.core.partition.partitions import TensorType
from trtbuild.driver.outputs.triton.tensors import described, max_batch_size
from trtbuild.errors import UsageError


def rows(*ranges: tuple[int, int], inputs: Any = None, outs: Any = None) -> dict[str, Any]:
    """A model of rows, with profiles of these batches."""
    given = inputs or [tensor("float32", B, 4, name="x")]
    profiles = [
        profile(f"p{k}", **{entry["name"]: ([low, 4], [low, 4], [high, 4]) for entry in given})
        for k, (low, high) in enumerate(ranges or [(1, 8)])
    ]
    return one_engine(given, outs or [tensor("float32", B, 2, name="y")], profiles)


def test_a_batch_is_axis_0_of_every_input_and_output() -> None:
    assert max_batch_size(typed(rows())) == 8


def test_profiles_may_cover_a_batch_together() -> None:
    assert max_batch_size(typed(rows((1, 1), (2, 8), (5, 32)))) == 32


@pytest.mark.parametrize("ranges", [[(2, 8)], [(1, 4), (6, 8)], [(4, 8), (1, 2)]])
def test_a_batch_that_not_every_profile_covers_from_1_on_is_none(ranges: list[tuple[int, int]]) -> None:
    """`max_batch_size` promises all sizes from 1 on."""
    assert max_batch_size(typed(rows(*ranges))) == 0


STATIC = tensor("float32", 1, 4, name="mask")


@pytest.mark.parametrize(
    ("inputs", "outs"),
    [
        ([tensor("float32", B, 4, name="x"), STATIC], None),  # an input without it
        ([tensor("float32", B, 4, name="x"), tensor("float32", 4, B, name="z")], None),  # at another axis
        (None, [tensor("float32", B, B, name="similarity")]),  # at two axes
        (None, [tensor("float32", B, 2, name="y"), tensor("float32", name="loss")]),  # a scalar beside it
        (None, [tensor("float32", B, name="row")]),  # its dims would be empty
        (None, [tensor("float32", ["add", B, 1], 2, name="y")]),  # another size
        ([tensor("float32", H, 4, name="x")], [tensor("float32", H, 2, name="y")]),  # not of 1 row
        (None, [tensor("int64", ["data", "n"], 2, name="found")]),  # as many as there are
        ([STATIC], [tensor("float32", 1, 2, name="y")]),
    ],
)
def test_without_one_batch_everywhere_there_is_none(inputs: Any, outs: Any) -> None:
    index = rows(inputs=inputs, outs=outs)
    assert max_batch_size(typed(index)) == 0
    whole = configurations(index)["det"]
    assert whole.max_batch_size == 0
    assert len(whole.input[0].dims) == 2  # so dims are whole


def test_dynamic_and_empty_axes_are_open() -> None:
    assert dict(described("x", TensorType("float32", (B, 3, 0, H))))["dims"] == [-1, 3, -1, -1]


def test_a_dtype_that_triton_has_not_is_said() -> None:
    with pytest.raises(UsageError, match="Triton has no type for 'wave', which is complex64"):
        described("wave", TensorType("complex64", (4,)))
