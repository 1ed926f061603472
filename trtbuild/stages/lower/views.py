"""Views become reshapes.

A ``view`` rests on the strides of its input, and those are what PyTorch's kernels happen to give: attention in half has
others than in float32, and written-out attention has its own. ONNX and TensorRT know no strides, so nothing is lost:
both operators have one translation.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten


def free_views(program: Program, request: Request) -> Program:
    """`program`, nested graphs too, with ``reshape`` for ``view``. (``view.dtype``, a change of dtype, stays.)"""
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function" and node.target in (_aten.view.default, _aten._unsafe_view.default):
                    node.target = _aten.reshape.default
            module.recompile()
    return program
