"""Write clamps so that their translations exist, keep infinities, and prefer the upper bound.

Rules
1. A clamp of float32 with one bound becomes a maximum or a minimum. The bound is a number, or a tensor without axes. The
   translation is a Clip without the other bound. For a missing bound, TensorRT's parser and onnxruntime use the lowest or
   the largest finite number. So for ``x = 0``, ``torch.log(x).clamp(max=2)`` gives -3.4e38 instead of -inf. In half
   precision, the translation of a clamp by one number is a maximum or a minimum.
2. If one bound is an int and the other a float, both become floats. Otherwise the exporter's type promotion fails, and
   ``x.clamp(0, 0.5)`` would stay in PyTorch.
3. If the lower bound is above the upper one, PyTorch gives the upper one, and TensorRT gives the lower one (measured with
   TensorRT 8.6). So the upper bound replaces the lower one.
"""

from __future__ import annotations

import math

import torch

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_TARGETS = frozenset((_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default))
_TENSOR_TARGETS = {_aten.clamp_min.Tensor: _aten.maximum.default, _aten.clamp_max.Tensor: _aten.minimum.default}


def write_bounds(program: Program, request: Request) -> Program:
    return change_calls(change_calls(program, _TARGETS, _write), _TENSOR_TARGETS, _write_tensor)


def _write(node: torch.fx.Node) -> None:
    low, high = argument_of(node, 1, "min", None), argument_of(node, 2, "max", None)
    if node.target is _aten.clamp_max.default:
        low, high = None, argument_of(node, 1, "max", None)
    bound = high if low is None else low
    source = node.args[0]
    if {type(low), type(high)} == {int, float} and node.meta["val"].dtype.is_floating_point:
        node.args, node.kwargs = (source, float(low), float(high)), {}
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        bound = float(high) if node.meta["val"].dtype.is_floating_point else high
        node.args, node.kwargs = (source, bound, bound), {}
    is_single = (low is None) is not (high is None) and isinstance(bound, int | float) and not math.isnan(bound)
    if not is_single or source.meta["val"].dtype is not torch.float32 or node.meta["val"].dtype is not torch.float32:
        return
    number = insert_call(node, _aten.full.default, [], float(bound), dtype=torch.float32)
    replace(node, insert_call(node, _aten.minimum.default if low is None else _aten.maximum.default, source, number))


def _write_tensor(node: torch.fx.Node) -> None:
    source, bound = node.args[0], argument_of(node, 1, "max" if node.target is _aten.clamp_max.Tensor else "min", None)
    values = [each.meta["val"] for each in (node, source, bound)]
    if bound.meta["val"].dim() == 0 and all(value.dtype is torch.float32 for value in values):
        replace(node, insert_call(node, _TENSOR_TARGETS[node.target], source, bound))
