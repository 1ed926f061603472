"""Change calls with indices to the form that ONNX defines.

Rules
1. This pass casts int32 indices, because ONNX's GatherND and ScatterND accept int64 only. (The indices of Gather,
   GatherElements and ScatterElements may be int32.)
2. ONNX's ScatterElements needs as many updates as indices. PyTorch's argument `src` may be larger than `index`, and
   PyTorch does not read the rest. So this pass slices `src`, unless a size depends on data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild.stages.lower.operators.calls import change_calls, insert_call
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_INDEXING_OPERATORS = frozenset(
    (_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten._unsafe_index_put.default)
)
#: Operators with the arguments self, dim, index, src.
_SCATTERING_OPERATORS = frozenset(
    (_aten.scatter.src, _aten.scatter.reduce, _aten.scatter_add.default, _aten.scatter_reduce.two)
)


def adapt_indices(program: Program, request: Request) -> Program:
    return change_calls(change_calls(program, _INDEXING_OPERATORS, _cast_indices), _SCATTERING_OPERATORS, _slice_source)


def _cast_indices(node: torch.fx.Node) -> None:
    def as_int64(index: Any) -> Any:
        is_int32 = index is not None and index.meta["val"].dtype is torch.int32
        return insert_call(node, _aten._to_copy.default, index, dtype=torch.int64) if is_int32 else index

    source, indices, *rest = node.args
    node.args = (source, [as_int64(index) for index in indices], *rest)


def _slice_source(node: torch.fx.Node) -> None:
    target, dim, index, source, *rest = node.args
    sizes, index_sizes = source.meta["val"].shape, index.meta["val"].shape
    if free_unbacked_symbols([*sizes, *index_sizes]):
        return
    for axis, (size, end) in enumerate(zip(sizes, index_sizes, strict=True)):
        # expressions instead of SymInts: comparing SymInts would add guards to the program's symbols
        if _expression(size) != _expression(end):
            last = end if isinstance(end, int) else insert_call(node, _aten.sym_size.int, index, axis)
            source = insert_call(node, _aten.slice.Tensor, source, axis, 0, last)
    node.args = (target, dim, index, source, *rest)
    propagate(node)


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
