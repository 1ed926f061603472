"""The inputs and outputs of a model configuration: types, dims, and the batch size.

Rules
1. A dynamic dim is -1. A dim of size 0 is -1, too, because Triton allows 0 in requests but not in configurations.
2. Triton has no tensors of rank 0. Their dims are [1], and `reshape` removes the axis for the engine. An ensemble has no
   `reshape`; its tensors always have [1].
3. `max_batch_size` N promises that every request of 1 to N rows is served, and that the rows are the same axis in every
   tensor. So `max_batch_size` is 0 unless all of this is true: axis 0 of every input and output is the same dim; no other
   axis depends on that dim; the profiles together cover all sizes from 1 to its max; every tensor has a second axis
   (otherwise its dims would be empty). Dynamic batching is never turned on, because rows may depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.core.packages.package_index import PackageIndex, PackedTensor
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import symbols_of
from trtbuild.driver.outputs.triton.text_format import Message, Word
from trtbuild.errors import UsageError

_TYPES = {
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


def described(name: str, tensor: PackedTensor | TensorType, *, batched: bool = False, reshape: bool = False) -> Message:
    """Return one input or output of a configuration. `batched` leaves out axis 0."""
    shape = tensor.shape[1:] if batched else tensor.shape
    dims = [size if isinstance(size, int) and size > 0 else -1 for size in shape]
    fields: list[tuple[str, Any]] = [
        ("name", name),
        ("data_type", Word(_type(name, tensor.dtype))),
        ("dims", dims or [1]),
    ]
    if reshape and not dims:
        fields.append(("reshape", (("shape", []),)))
    return tuple(fields)


def _type(name: str, dtype: str) -> str:
    if dtype not in _TYPES:
        raise UsageError(
            f"Triton has no type for {name!r}, which is {dtype}",
            hint="leave `triton` out of the model's outputs, or give the tensor another dtype",
        )
    return _TYPES[dtype]


def max_batch_size(index: PackageIndex) -> int:
    """Return the largest batch of a package's model, or 0 (rule 3)."""
    tensors = [*index.inputs, *index.outputs]
    if not index.inputs or any(len(tensor.shape) < 2 for tensor in tensors):
        return 0
    rows = index.inputs[0].shape[0]
    if isinstance(rows, int) or rows[0] != "sym":
        return 0
    symbol = next(iter(symbols_of(rows)))
    if index.dims[symbol].multiple_of != 1:
        return 0
    for tensor in tensors:
        first, *other_sizes = tensor.shape
        if first != rows or any(symbol in symbols_of(size) for size in other_sizes):
            return 0
    return _largest_covered_size([(profile.shapes[0].min[0], profile.shapes[0].max[0]) for profile in index.profiles])


def _largest_covered_size(ranges: Sequence[tuple[int, int]]) -> int:
    """Return the largest size if the ranges cover all sizes from 1 to it; otherwise 0."""
    covered = 0
    for low, high in sorted(ranges):
        if low > covered + 1:
            return 0
        covered = max(covered, high)
    return covered
