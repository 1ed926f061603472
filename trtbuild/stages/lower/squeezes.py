"""Make each squeeze remove the same axes in ONNX as in PyTorch.

PyTorch's ``squeeze`` ignores an axis whose size is not 1, and ONNX's Squeeze fails for it. So this pass removes such axes
from the arguments. If no axis is left, it replaces the squeeze by a copy. The trace step has proven that a squeeze never
removes a dynamic axis.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_SQUEEZES = frozenset(
    getattr(packet, name) for packet in (_aten.squeeze, _aten.squeeze_copy) for name in ("default", "dim", "dims")
)


def name_squeezed_axes(program: Program, request: Request) -> Program:
    return change_calls(program, _SQUEEZES, _rewrite)


def _rewrite(node: torch.fx.Node) -> None:
    source = node.args[0]
    value = source.meta["val"]
    axes = _axes(node, value.dim())
    removed_axes = [axis for axis in axes if isinstance(value.shape[axis], int) and value.shape[axis] == 1]
    if removed_axes == axes or (_names_no_axes(node) and all(isinstance(size, int) for size in value.shape)):
        return  # ONNX's Squeeze has the same effect
    target, args = (_aten.squeeze.dims, (source, removed_axes)) if removed_axes else (_aten.clone.default, (source,))
    replace(node, insert_call(node, target, *args))


def _names_no_axes(node: torch.fx.Node) -> bool:
    return len(node.args) < 2 and "dim" not in node.kwargs


def _axes(node: torch.fx.Node, rank: int) -> list[int]:
    """The axes that a squeeze may remove, as numbers from 0."""
    if _names_no_axes(node):
        return list(range(rank))
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]
    return [axis % rank for axis in ([dims] if isinstance(dims, int) else dims)] if rank else []
