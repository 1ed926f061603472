"""Replace views by reshapes.

Whether a ``view`` is possible depends on the strides of its input, and these depend on PyTorch's kernels: attention has
other strides in float16 than in float32. ONNX has no strides, so ``view`` and ``reshape`` have the same translation.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten


def replace_views(program: Program, request: Request) -> Program:
    for module in program.exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                # `view.dtype` is another operation: it changes the dtype
                if node.op == "call_function" and node.target in (_aten.view.default, _aten._unsafe_view.default):
                    node.target = _aten.reshape.default
            module.recompile()
    return program
