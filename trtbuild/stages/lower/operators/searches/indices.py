"""Change calls with indices to the form that ONNX defines.

Rules
1. This pass casts int32 indices, because ONNX's GatherND and ScatterND accept int64 only. (The indices of Gather,
   GatherElements and ScatterElements may be int32.)
2. ONNX's ScatterElements needs as many updates as indices. PyTorch's argument `src` may be larger than `index`, and
   PyTorch does not read the rest. So this pass slices `src`, unless a size depends on data.
3. TensorRT's gather layer defines no result for a negative index of a dynamic axis (``NvInfer.h``, `IGatherLayer`), and
   the parser passes negative indices on. So this pass adds the size of the axis to negative indices: to the number in
   ``x[:, -1]``, and to the elements of index tensors that may be negative.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_SELECTING_OPERATORS = frozenset((_aten.select.int, _aten.select_copy.int))
_INDEXING_OPERATORS = frozenset(
    (_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten._unsafe_index_put.default)
)
#: Operators whose results are indices from 0.
_COUNTING_OPERATORS = frozenset((_aten.argmax.default, _aten.argmin.default, _aten.argsort.default))
#: Operators that change the shape or the type of their first argument only.
_COPYING_OPERATORS = frozenset(
    getattr(_aten, name).default
    for name in (
        *("unsqueeze", "view", "reshape", "expand", "clone", "_to_copy", "alias", "detach", "detach_"),
        *("lift_fresh", "lift_fresh_copy"),
    )
)
#: Operators with the arguments self, dim, index, src.
_SCATTERING_OPERATORS = frozenset(
    (_aten.scatter.src, _aten.scatter.reduce, _aten.scatter_add.default, _aten.scatter_reduce.two)
)


def adapt_indices(program: Program, request: Request) -> Program:
    constants = {node: program.constants[node.name] for node in program.placeholders if node.name in program.constants}
    program = change_calls(program, _SELECTING_OPERATORS, _select_from_start)
    program = change_calls(program, _INDEXING_OPERATORS, lambda node: _count_from_start(node, constants))
    return change_calls(change_calls(program, _INDEXING_OPERATORS, _cast_indices), _SCATTERING_OPERATORS, _slice_source)


def _select_from_start(node: torch.fx.Node) -> None:
    """Apply rule 3 to a select of one index."""
    source, axis, index = node.args[0], argument_of(node, 1, "dim", 0), argument_of(node, 2, "index", 0)
    axis %= max(source.meta["val"].dim(), 1)  # the translation of `sym_size` takes no negative axis
    if isinstance(index, int) and index < 0 and isinstance(source.meta["val"].shape[axis], torch.SymInt):
        size = insert_call(node, _aten.sym_size.int, source, axis)
        node.args, node.kwargs = (source, axis, insert_call(node, operator.add, size, index)), {}


def _count_from_start(node: torch.fx.Node, constants: Mapping[torch.fx.Node, torch.Tensor]) -> None:
    """Apply rule 3 to the index tensors of a call."""
    source, indices, *rest = node.args
    sizes = source.meta["val"].shape
    if any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices):
        return  # a mask selects from several axes

    def from_start(index: torch.fx.Node, axis: int) -> torch.fx.Node:
        size = sizes[axis]
        if isinstance(size, int) or _is_never_negative(index, constants):
            return index
        size = insert_call(node, _aten.sym_size.int, source, axis)
        wrapped = insert_call(node, _aten.add.Tensor, index, size)
        return insert_call(node, _aten.where.self, insert_call(node, _aten.lt.Scalar, index, 0), wrapped, index)

    node.args = (
        source,
        [index if index is None else from_start(index, axis) for axis, index in enumerate(indices)],
        *rest,
    )


def _is_never_negative(index: torch.fx.Node, constants: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    """Whether it is known that no element of an index tensor is negative."""
    while index.target in _COPYING_OPERATORS:
        index = index.args[0]
    if index in constants:
        return bool((constants[index] >= 0).all())
    if index.target is _aten.arange.default:
        return True
    if index.target in (_aten.arange.start, _aten.arange.start_step):
        first, step = index.args[0], index.args[2] if len(index.args) > 2 else 1
        return isinstance(first, int) and first >= 0 and isinstance(step, int) and step > 0
    return index.target in _COUNTING_OPERATORS


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
