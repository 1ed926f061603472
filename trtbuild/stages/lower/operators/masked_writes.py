"""Write ``x[mask] = value`` as a choice between two tensors.

PyTorch writes to the elements that a mask of booleans selects. The translation finds the positions of these elements with
NonZero, which TensorRT-RTX does not have. So the call, and calls near it, would stay in PyTorch.

Rules
1. A call is replaced if all selected elements get the same value. So `value` has at most the axes of `x`
   that come after the mask's axes. It may have one more axis before them, of size 1.
2. ``x[torch.where(mask)] = value`` is the same call: its indices are the columns of the mask's nonzero positions, in order.
3. Booleans are chosen by logical operators, because onnxruntime has no Where for them, so it could not check the engine.
4. Other calls are not replaced, for example calls that add to the elements, and calls whose mask may have other sizes than
   the axes of `x`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.propagate import expressions
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_WRITES = frozenset((_aten.index_put.default, _aten._unsafe_index_put.default))


def choose_masked_values(program: Program, request: Request) -> Program:
    return change_calls(program, _WRITES, _choose)


def _choose(node: torch.fx.Node) -> None:
    source, indices, value = node.args[:3]
    start = next((axis for axis, index in enumerate(indices) if index is not None), 0)
    mask = _mask_of(indices[start:])
    if mask is None or argument_of(node, 3, "accumulate", False):
        return
    sizes, mask_sizes, value_sizes = _sizes(source), _sizes(mask), _sizes(value)
    end = start + len(mask_sizes)
    is_one_value = len(value_sizes) <= len(sizes) - end or (
        len(value_sizes) == len(sizes) - end + 1 and value_sizes[0] == 1
    )
    if not mask_sizes or sizes[start:end] != mask_sizes or not is_one_value:
        return
    for _ in sizes[end:]:
        mask = insert_call(node, _aten.unsqueeze.default, mask, -1)
    if source.meta["val"].dtype is torch.bool:
        written = insert_call(node, _aten.logical_and.default, mask, value)
        kept = insert_call(node, _aten.logical_and.default, insert_call(node, _aten.logical_not.default, mask), source)
        replace(node, insert_call(node, _aten.logical_or.default, written, kept))
    else:
        replace(node, insert_call(node, _aten.where.self, mask, value, source))


def _mask_of(indices: Sequence[Any]) -> torch.fx.Node | None:
    """The mask that `indices` apply: it is the only index, or the indices are its nonzero positions. None without such a
    mask, and if an axis between two indices has no index (``x[rows, :, columns]``), because PyTorch moves such axes."""
    while indices and indices[-1] is None:
        indices = indices[:-1]
    if None in indices:
        return None
    if len(indices) == 1 and indices[0].meta["val"].dtype is torch.bool:
        return indices[0]
    columns = indices[0].args[0] if indices and indices[0].target is operator.getitem else None
    if not isinstance(columns, torch.fx.Node) or columns.target is not _aten.unbind.int:
        return None
    positions = columns.args[0]
    if positions.target is not _aten.nonzero.default or argument_of(columns, 1, "dim", 0) not in (1, -1):
        return None
    mask = positions.args[0]
    numbers = [index.args[1] if index.args[:1] == (columns,) else None for index in indices]
    is_mask = mask.meta["val"].dtype is torch.bool and numbers == list(range(mask.meta["val"].dim()))
    return mask if is_mask else None


def _sizes(node: torch.fx.Node) -> list[Any]:
    return expressions(node.meta["val"].shape)
