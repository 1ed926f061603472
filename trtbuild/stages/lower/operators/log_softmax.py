"""Write ``log_softmax`` out as ``x - max - log(sum(exp(x - max)))``.

TensorRT's parser replaces ONNX's LogSoftmax by a softmax and a logarithm. The softmax of a number is 0 if the number is far
below the largest one (about 100 below it in float32, 17 in float16). The logarithm is then -inf. Values of half precision
are computed in float32, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_TARGETS = frozenset((_aten.log_softmax.int, _aten._log_softmax.default, _aten.special_log_softmax.default))


def write_out_log_softmax(program: Program, request: Request) -> Program:
    return change_calls(program, _TARGETS, _write)


def _write(node: torch.fx.Node) -> None:
    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return insert_call(node, target, *args, **kwargs)

    source, axis = node.args[:2]
    dtype, source_dtype = node.meta["val"].dtype, source.meta["val"].dtype
    wide = torch.float32 if dtype in HALF_TYPES else dtype
    x = source if source_dtype is wide else call(_aten._to_copy.default, source, dtype=wide)
    if not node.meta["val"].dim():
        result = call(_aten.sub.Tensor, x, x)  # the softmax of a single number is 1, and the logarithm of 1 is 0
    else:
        shifted = call(_aten.sub.Tensor, x, call(_aten.amax.default, x, [axis], True))
        total = call(_aten.sum.dim_IntList, call(_aten.exp.default, shifted), [axis], True)
        result = call(_aten.sub.Tensor, shifted, call(_aten.log.default, total))
    replace(node, result if wide is dtype else call(_aten._to_copy.default, result, dtype=dtype))
