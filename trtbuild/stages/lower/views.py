"""Replace views by reshapes.

Whether a ``view`` is possible depends on the strides of its input, and these depend on PyTorch's kernels: attention has
other strides in float16 than in float32. ONNX has no strides, so ``view`` and ``reshape`` have the same translation.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.operators.calls import change_calls
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten


def replace_views(program: Program, request: Request) -> Program:
    # `view.dtype` is another operation: it changes the dtype
    return change_calls(program, (_aten.view.default, _aten._unsafe_view.default), _reshape)


def _reshape(node: torch.fx.Node) -> None:
    node.target = _aten.reshape.default
