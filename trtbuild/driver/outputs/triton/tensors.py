"""The inputs and outputs of a Triton model's configuration: types, dims, and the batch size.

Rules
1. A dynamic dim is -1. A dim of size 0 is also -1, because Triton allows 0 in requests but not in configurations.
2. Triton has no tensors of rank 0. The dims of such a tensor are [1], and `reshape` removes the axis for the engine. An
   ensemble has no `reshape`, so the dims of its tensors stay [1].
3. A `max_batch_size` of N promises that every request of 1 to N rows is served, and that the rows are axis 0 of every
   tensor. So `max_batch_size` is 0 unless all of these conditions are met:
   * Axis 0 of every input and output is the same dim, without `multiple_of`, and no other axis depends on that dim.
   * The profiles together cover all sizes from 1 to the dim's max.
   * Every tensor has a second axis, because its dims must not be empty.
4. Dynamic batching is never turned on, because rows may depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.core.packages.package_index import PackageIndex, PackedTensor
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import symbols_of
from trtbuild.driver.outputs.triton.text_format import EnumValue, Message
from trtbuild.errors import UsageError

_TRITON_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}


def tensor_fields(
    name: str, tensor: PackedTensor | TensorType, *, batched: bool = False, reshape: bool = False
) -> Message:
    """Return the fields of one input or output in a configuration.

    With `batched`, axis 0 is left out. With `reshape`, a tensor of rank 0 has the field `reshape` (rule 2).
    """
    shape = tensor.shape[1:] if batched else tensor.shape
    dims = [size if isinstance(size, int) and size > 0 else -1 for size in shape]
    fields: list[tuple[str, Any]] = [
        ("name", name),
        ("data_type", EnumValue(_triton_type(name, tensor.dtype))),
        ("dims", dims or [1]),
    ]
    if reshape and not dims:
        fields.append(("reshape", (("shape", []),)))
    return tuple(fields)


def _triton_type(name: str, dtype: str) -> str:
    if dtype not in _TRITON_TYPES:
        raise UsageError(
            f"Triton has no type for {name!r}, which is {dtype}",
            hint="leave `triton` out of the model's outputs, or give the tensor another dtype",
        )
    return _TRITON_TYPES[dtype]


def max_batch_size(index: PackageIndex) -> int:
    """Return the `max_batch_size` of a package's model (rule 3)."""
    tensors = [*index.inputs, *index.outputs]
    if not index.inputs or any(len(tensor.shape) < 2 for tensor in tensors):
        return 0
    row_count = index.inputs[0].shape[0]
    if isinstance(row_count, int) or row_count[0] != "sym":
        return 0
    symbol = next(iter(symbols_of(row_count)))
    if index.dims[symbol].multiple_of != 1:
        return 0
    for tensor in tensors:
        first_size, *other_sizes = tensor.shape
        if first_size != row_count or any(symbol in symbols_of(size) for size in other_sizes):
            return 0
    return _largest_covered_size([(profile.shapes[0].min[0], profile.shapes[0].max[0]) for profile in index.profiles])


def _largest_covered_size(ranges: Sequence[tuple[int, int]]) -> int:
    """Return the largest size in `ranges`, or 0 if `ranges` do not contain all sizes from 1 to this size."""
    covered = 0
    for low, high in sorted(ranges):
        if low > covered + 1:
            return 0
        covered = max(covered, high)
    return covered
