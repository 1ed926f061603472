"""Types, dims and the batch of a model configuration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.outputs.triton.repositories import B, H, configurations, one_engine, profile, read_unchecked, tensor
from trtbuild.core.partition.partitions import TensorType
from trtbuild.driver.outputs.triton.tensors import max_batch_size, tensor_fields
from trtbuild.errors import UsageError


def index_with_profiles(*ranges: tuple[int, int], inputs: Any = None, outs: Any = None) -> dict[str, Any]:
    """Return the index of a model with one profile for each range of batch sizes."""
    named_inputs = inputs or [tensor("float32", B, 4, name="x")]
    profiles = [
        profile(f"p{k}", **{entry["name"]: ([low, 4], [low, 4], [high, 4]) for entry in named_inputs})
        for k, (low, high) in enumerate(ranges or [(1, 8)])
    ]
    return one_engine(named_inputs, outs or [tensor("float32", B, 2, name="y")], profiles)


def test_a_batch_is_axis_0_of_every_input_and_output() -> None:
    assert max_batch_size(read_unchecked(index_with_profiles())) == 8


def test_profiles_may_cover_a_batch_together() -> None:
    assert max_batch_size(read_unchecked(index_with_profiles((1, 1), (2, 8), (5, 32)))) == 32


@pytest.mark.parametrize("ranges", [[(2, 8)], [(1, 4), (6, 8)], [(4, 8), (1, 2)]])
def test_profiles_that_leave_out_batch_sizes_have_no_batch(ranges: list[tuple[int, int]]) -> None:
    assert max_batch_size(read_unchecked(index_with_profiles(*ranges))) == 0


STATIC = tensor("float32", 1, 4, name="mask")


@pytest.mark.parametrize(
    ("inputs", "outs"),
    [
        ([tensor("float32", B, 4, name="x"), STATIC], None),  # an input without a batch
        ([tensor("float32", B, 4, name="x"), tensor("float32", 4, B, name="z")], None),  # the batch at another axis
        (None, [tensor("float32", B, B, name="similarity")]),  # an output with the batch at two axes
        (None, [tensor("float32", B, 2, name="y"), tensor("float32", name="loss")]),  # a scalar output
        (None, [tensor("float32", B, name="row")]),  # an output whose dims would be empty
        (None, [tensor("float32", ["add", B, 1], 2, name="y")]),  # an output with one row more than the batch
        ([tensor("float32", H, 4, name="x")], [tensor("float32", H, 2, name="y")]),  # the smallest size is 32, not 1
        (None, [tensor("int64", ["data", "n"], 2, name="found")]),  # the number of rows depends on data
        ([STATIC], [tensor("float32", 1, 2, name="y")]),  # no dynamic axis
    ],
)
def test_inputs_and_outputs_without_a_common_batch_have_no_batch(inputs: Any, outs: Any) -> None:
    index = index_with_profiles(inputs=inputs, outs=outs)
    assert max_batch_size(read_unchecked(index)) == 0
    config = configurations(index)["det"]
    assert config.max_batch_size == 0
    assert len(config.input[0].dims) == 2  # dims include axis 0


def test_the_dim_of_a_dynamic_or_empty_axis_is_minus_1() -> None:
    assert dict(tensor_fields("x", TensorType("float32", (B, 3, 0, H))))["dims"] == [-1, 3, -1, -1]


def test_rejects_a_dtype_that_triton_does_not_have() -> None:
    with pytest.raises(UsageError, match="Triton has no type for 'wave', which is complex64"):
        tensor_fields("wave", TensorType("complex64", (4,)))
