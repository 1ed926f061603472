"""Write a clamp of float32 with one bound as a maximum or a minimum.

The translation is a Clip without the other bound. TensorRT's parser and onnxruntime use the largest finite number instead
of it. So ``torch.log(x).clamp(max=2)`` of 0 is -3.4e38 instead of -inf. For half precision, the translation is a maximum
or a minimum.
"""

from __future__ import annotations

import math

import torch

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_TARGETS = frozenset((_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default))


def write_single_bounds(program: Program, request: Request) -> Program:
    return change_calls(program, _TARGETS, _write)


def _write(node: torch.fx.Node) -> None:
    low, high = argument_of(node, 1, "min", None), argument_of(node, 2, "max", None)
    if node.target is _aten.clamp_max.default:
        low, high = None, argument_of(node, 1, "max", None)
    bound = high if low is None else low
    source = node.args[0]
    is_single = (low is None) is not (high is None) and isinstance(bound, int | float) and not math.isnan(bound)
    if not is_single or source.meta["val"].dtype is not torch.float32 or node.meta["val"].dtype is not torch.float32:
        return
    number = insert_call(node, _aten.full.default, [], float(bound), dtype=torch.float32)
    replace(node, insert_call(node, _aten.minimum.default if low is None else _aten.maximum.default, source, number))
