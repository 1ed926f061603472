"""Make each squeeze remove the same axes in ONNX as in PyTorch.

PyTorch's ``squeeze`` ignores an axis whose size is not 1, and ONNX's Squeeze fails for it. So this pass removes such axes
from the arguments. If no axis is left, it replaces the squeeze by a copy. The trace step has proven that a squeeze never
removes a dynamic axis.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_SQUEEZES = frozenset(
    getattr(packet, name) for packet in (_aten.squeeze, _aten.squeeze_copy) for name in ("default", "dim", "dims")
)


def name_squeezed_axes(program: Program, request: Request) -> Program:
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function" and node.target in _SQUEEZES:
                    _rewrite(node)
            module.recompile()
    for spec, output in zip(program.exported.graph_signature.output_specs, program.output_nodes, strict=True):
        spec.arg.name = output.name
    return program


def _rewrite(node: torch.fx.Node) -> None:
    source = node.args[0]
    value = source.meta["val"]
    axes = _axes(node, value.dim())
    removed_axes = [axis for axis in axes if isinstance(value.shape[axis], int) and value.shape[axis] == 1]
    if removed_axes == axes or (_names_no_axes(node) and all(isinstance(size, int) for size in value.shape)):
        return  # ONNX's Squeeze has the same effect
    target, args = (_aten.squeeze.dims, (source, removed_axes)) if removed_axes else (_aten.clone.default, (source,))
    with node.graph.inserting_before(node):
        new_node = node.graph.call_function(target, args)
        set_stack(new_node, stack_of(node))
        propagate(new_node)
    node.replace_all_uses_with(new_node)
    node.graph.erase_node(node)


def _names_no_axes(node: torch.fx.Node) -> bool:
    return len(node.args) < 2 and "dim" not in node.kwargs


def _axes(node: torch.fx.Node, rank: int) -> list[int]:
    """The axes that a squeeze may remove, as numbers from 0."""
    if _names_no_axes(node):
        return list(range(rank))
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]
    return [axis % rank for axis in ([dims] if isinstance(dims, int) else dims)] if rank else []
