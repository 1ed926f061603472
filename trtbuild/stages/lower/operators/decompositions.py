"""Decompositions of operators that have neither a correct ONNX translation nor a suitable decomposition in PyTorch, such as
adaptive pooling and ``cdist``.

A decomposition returns NotImplemented if it does not change the call.

Rules
1. Each decomposition is right for all sizes. In pooling, a *cell* is the group of elements that gives one element of the
   result. PyTorch's own decompositions find the cells for the sizes of the example only. So `POOLING_DECOMPOSITIONS` are
   used if the program pools a dynamic axis, and `DECOMPOSITIONS` always.
2. The result of a cell depends on the elements of this cell only. A product with a matrix would be shorter, but an infinity
   in one cell would make the results of the other cells NaN.
3. Distances are norms of differences. But for many rows, eager PyTorch computes Euclidean distances by a matrix
   product, and so does `_distances`, if the number of rows is known.
4. The translation of ``diagonal`` multiplies by zeros, so an infinity outside the diagonal would make the result NaN. A
   diagonal that may be empty at some sizes stays in PyTorch.
5. PyTorch decomposes ``diagonal_scatter`` into a write to a ``diagonal``. With rule 4, this would be a write to a copy,
   so `_diagonal_scatter` selects the new elements instead. The operator comes from ``x.diagonal().fill_(0)``, for example.
6. PyTorch decomposes ``bucketize`` into a binary search. The number of its steps fits the example's boundaries only. So
   `_bucketize` counts the boundaries before a value if their number is dynamic. It also does so for a 0-d value, for which
   PyTorch's search fails: it uses 0-d tensors as indices, whose numbers depend on data.
7. PyTorch decomposes ``isin`` into comparisons or into a sort, whichever is faster for the example. `_isin` compares all
   pairs if a size is dynamic, so the graph does not depend on the example.
8. Neither PyTorch nor the exporter can write out ``searchsorted``. `_searchsorted` takes the steps of eager PyTorch's
   binary search, so it gives the same results even for a row whose end is not sorted (zeros, NaN). A count, as in rule 6,
   would not. So calls with a dynamic number of boundaries stay in PyTorch, and so do calls with a sorter.
9. TensorRT has no ``Col2Im``. If the windows of ``fold`` tile the result, each element of the result comes from one window.
   So `_fold` only reorders axes. Other calls stay in PyTorch.
10. ``linspace`` of an integer dtype first casts its two ends to this dtype. PyTorch's decomposition does not. `_linspace`
   casts numbers. Calls with tensors or with computed floats stay in PyTorch.
11. With ``align_corners``, PyTorch's decomposition of a linear interpolation divides by the number of elements minus 1. If
   this number may be 1, `_interpolate_line` computes at least 2 elements. The first one is right for any number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._decomp.decompositions import upsample_compute_output_size
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.stages.half_types import HALF_TYPES

_aten = torch.ops.aten

#: With more rows than this, `torch.cdist` computes Euclidean distances by a matrix product.
_PRODUCT_ROWS = 25


def _pool(x: torch.Tensor, cell_counts: Sequence[Any]) -> torch.Tensor:
    """Adaptive average pooling of the last axes. `cell_counts` has the number of cells on each of these axes.

    A cell is a box, so its mean is a mean of means, axis by axis.
    """
    dtype = x.dtype
    wide = x.float() if dtype in HALF_TYPES else x
    for axis, cell_count in enumerate(cell_counts, x.dim() - len(cell_counts)):
        wide = _pool_axis(wide, axis, cell_count)
    return wide.to(dtype)


def _pool_axis(x: torch.Tensor, axis: int, cell_count: Any) -> torch.Tensor:
    size = x.shape[axis]
    if isinstance(cell_count, int) and cell_count == 1:
        return x.mean(axis, keepdim=True)
    if isinstance(size, int) and isinstance(cell_count, int):
        if size == cell_count:
            return x
        if size % cell_count == 0:
            return x.unflatten(axis, (cell_count, size // cell_count)).mean(axis + 1)
    most_elements = size // cell_count + 2  # no cell has more elements
    cells = torch.arange(cell_count, device=x.device)
    starts = cells * size // cell_count
    ends = ((cells + 1) * size + cell_count - 1) // cell_count
    positions = starts[:, None] + torch.arange(most_elements, device=x.device)
    is_inside = positions < ends[:, None]
    elements = x.index_select(axis, positions.clamp(max=size - 1).flatten())
    elements = elements.unflatten(axis, (cell_count, most_elements))
    trailing = (1,) * (x.dim() - axis - 1)
    total = torch.where(is_inside.reshape(*is_inside.shape, *trailing), elements, 0).sum(axis + 1)
    return total / (ends - starts).to(x.dtype).reshape(-1, *trailing)


def _distances(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """``_cdist_forward``. For p = 2, `compute_mode` 1 uses a matrix product, and None or 0 do so for many rows."""
    rows = [size for size in (x1.shape[-2], x2.shape[-2]) if isinstance(size, int)]
    uses_product = compute_mode == 1 or (compute_mode in (None, 0) and max(rows, default=0) > _PRODUCT_ROWS)
    if p != 2 or not uses_product:
        return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), ord=p, dim=-1)
    squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1, keepdim=True).transpose(-2, -1)
    return (squares - 2 * (x1 @ x2.transpose(-2, -1))).clamp(min=0).sqrt()


def _pair_distances(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    """``_pdist_forward``: the distance from each row to each later row. With a dynamic number of rows, the operator
    stays in PyTorch, because ``triu_indices`` needs an int."""
    count = x.shape[0]
    if not isinstance(count, int):
        return NotImplemented
    first, second = torch.triu_indices(count, count, offset=1, device=x.device)
    return torch.linalg.vector_norm(x.index_select(0, first) - x.index_select(0, second), ord=p, dim=-1)


def _reshape(x: torch.Tensor, size: Sequence[Any]) -> torch.Tensor:
    return x.reshape(size)


def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    first, second = dim1 % x.dim(), dim2 % x.dim()
    others = [axis for axis in range(x.dim()) if axis not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = _diagonal_size(rows - first_row, columns - first_column)
    if count is None:
        return NotImplemented
    # in the flattened matrix, the next element of the diagonal is one row and one column further
    places = torch.arange(count, device=x.device) * (columns + 1) + (first_row * columns + first_column)
    matrices = x.permute(*others, first, second)
    return matrices.reshape(*matrices.shape[:-2], rows * columns).index_select(-1, places)


def _diagonal_size(rows: Any, columns: Any) -> Any:
    """The number of elements of a diagonal with this many rows and columns. None if it may be empty."""
    if not all(statically_known_true(size >= 1) for size in (rows, columns)):
        return None
    return torch.sym_min(rows, columns)


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    first, second = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = (torch.arange(x.shape[axis], device=x.device) for axis in (first, second))
    first_row = max(-offset, 0)
    count = _diagonal_size(x.shape[first] - first_row, x.shape[second] - max(offset, 0))
    if count is None:
        return NotImplemented
    # the new element of each row; rows outside the diagonal get an element that is not selected
    elements = src.index_select(-1, (rows - first_row).clamp(0, count - 1)).unsqueeze(-1)
    is_diagonal = columns - rows.unsqueeze(-1) == offset
    axes = [axis for axis in range(x.dim()) if axis not in (first, second)] + [first, second]
    scattered = torch.where(is_diagonal, elements, x.permute(axes))
    return scattered.permute([axes.index(axis) for axis in range(x.dim())]).contiguous()


def _bucketize(
    values: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    if isinstance(boundaries.shape[0], int) and values.dim():
        search = get_decompositions([_aten.bucketize.Tensor])[_aten.bucketize.Tensor]
        return search(values, boundaries, out_int32=out_int32, right=right)
    # with `~`, all boundaries come before NaN, as in eager PyTorch
    column = values.unsqueeze(-1)
    is_before = ~(boundaries > column if right else boundaries >= column)
    return is_before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _searchsorted(
    boundaries: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    count = boundaries.shape[-1]
    if sorter is not None or not isinstance(count, int):
        return NotImplemented
    right = right or side == "right"
    first = torch.zeros_like(values, dtype=torch.int64)
    end = torch.full_like(values, count, dtype=torch.int64)
    for _ in range(count.bit_length()):
        middle = first + (end - first) // 2
        places = middle.clamp(max=count - 1)
        if boundaries.dim() == 1:
            boundary = boundaries.index_select(0, places.flatten()).reshape(values.shape)
        else:
            boundary = boundaries.gather(-1, places)
        is_open = first < end
        is_before = ~(boundary > values if right else boundary >= values)  # `~`: all boundaries come before NaN
        first, end = (
            torch.where(is_open & is_before, middle + 1, first),
            torch.where(is_open & ~is_before, middle, end),
        )
    return first.to(torch.int32 if out_int32 else torch.int64)


def _fold(
    x: torch.Tensor,
    output_size: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """``col2im`` if the windows tile the result."""
    tiles = list(kernel_size) == list(stride) and set(dilation) == {1} and set(padding) == {0}
    if not tiles or not all(
        statically_known_true(size % width == 0) for size, width in zip(output_size, kernel_size, strict=True)
    ):
        return NotImplemented
    (height, width), (rows, columns) = output_size, kernel_size
    channels = x.shape[-2] // (rows * columns)
    windows = x.reshape(-1, channels, rows, columns, height // rows, width // columns)
    return windows.permute(0, 1, 4, 2, 5, 3).reshape(*x.shape[:-2], channels, height, width)


def _isin(
    elements: torch.Tensor, tests: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    if all(isinstance(size, int) for size in (*elements.shape, *tests.shape)):
        find = get_decompositions([_aten.isin.Tensor_Tensor])[_aten.isin.Tensor_Tensor]
        return find(elements, tests, assume_unique=assume_unique, invert=invert)
    is_in = (elements.unsqueeze(-1) == tests.flatten()).any(-1)
    return ~is_in if invert else is_in


def _linspace(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
        if any(isinstance(number, torch.Tensor | torch.SymFloat) for number in (start, end)):
            return NotImplemented
        start, end = (int(number) if isinstance(number, float) else number for number in (start, end))
    return get_decompositions([_aten.linspace.default])[_aten.linspace.default](
        start, end, steps, dtype=dtype, **options
    )


def _interpolate_line(
    x: torch.Tensor, output_size: Sequence[Any] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> torch.Tensor:
    interpolate = get_decompositions([_aten.upsample_linear1d.default])[_aten.upsample_linear1d.default]
    (count,) = upsample_compute_output_size(x.shape, output_size, scale_factors)
    if not align_corners or isinstance(count, int):
        return interpolate(x, [count], align_corners, scale_factors[0] if scale_factors else None)
    return interpolate(x, [torch.sym_max(count, 2)], align_corners)[..., :count]


#: Operator → its decomposition, for all sizes.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten._adaptive_avg_pool3d.default: _pool,
    _aten._cdist_forward.default: _distances,
    _aten._pdist_forward.default: _pair_distances,
    _aten._reshape_copy.default: _reshape,
    _aten.bucketize.Tensor: _bucketize,
    _aten.col2im.default: _fold,
    _aten.diagonal.default: _diagonal,
    _aten.diagonal_copy.default: _diagonal,
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.isin.Tensor_Tensor: _isin,
    _aten.linspace.default: _linspace,
    _aten.linspace.Scalar_Tensor: _linspace,
    _aten.linspace.Tensor_Scalar: _linspace,
    _aten.linspace.Tensor_Tensor: _linspace,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.upsample_linear1d.vec: _interpolate_line,
}

#: Pooling to a number of cells → its decomposition for dynamic axes.
POOLING_DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    packet.default: _pool
    for packet in (
        *(_aten.adaptive_avg_pool1d, _aten.adaptive_avg_pool2d, _aten.adaptive_avg_pool3d),
        *(_aten._adaptive_avg_pool2d, _aten._adaptive_avg_pool3d),
    )
}
