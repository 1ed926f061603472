"""Divide integers exactly.

The ONNX translation of ``torch.div(x, y, rounding_mode=…)`` divides integers in float32, which is exact only for
integers of up to 24 bits. The translation of ``floor_divide`` divides all integers exactly.
"""

from __future__ import annotations

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_DIVISIONS = frozenset((_aten.div.Tensor_mode, _aten.div.Scalar_mode))


def divide_integers_exactly(program: Program, request: Request) -> Program:
    return change_calls(program, _DIVISIONS, _divide)


def _divide(node: torch.fx.Node) -> None:
    dividend, divisor = node.args
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point or node.kwargs["rounding_mode"] is None:
        return
    quotient = insert_call(node, _aten.floor_divide.default, dividend, divisor)
    if node.kwargs["rounding_mode"] == "trunc" and dtype.is_signed:
        # to round towards zero, add 1 where the exact quotient is negative and not whole
        remainder = insert_call(
            node, _aten.sub.Tensor, dividend, insert_call(node, _aten.mul.Tensor, quotient, divisor)
        )
        is_inexact = insert_call(node, _aten.ne.Scalar, remainder, 0)
        is_negative = insert_call(node, _aten.lt.Scalar, quotient, 0)
        correction = insert_call(node, _aten.logical_and.default, is_inexact, is_negative)
        quotient = insert_call(node, _aten.add.Tensor, quotient, correction)
    replace(node, quotient)
