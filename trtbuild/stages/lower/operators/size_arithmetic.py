"""Compute with sizes as Python does.

Rules
1. The ONNX translation of an operation of a size and a float (``x.shape[1] * 0.5``) rounds the float to an integer. So this
   pass casts the size to a float first.
2. The translation of ``//`` rounds towards zero. Python rounds down, so ``-(-size // 2)`` rounds up. So this pass subtracts
   the remainder from a dividend that may be negative.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.stages.lower.operators.calls import change_calls, insert_call
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
#: Operations of two numbers whose translation needs operands of one type. (``truediv`` casts both.)
_OPERATIONS = frozenset(
    (operator.add, operator.sub, operator.mul, operator.pow, operator.mod, torch.sym_min, torch.sym_max, *_COMPARISONS)
)


def compute_sizes_as_python(program: Program, request: Request) -> Program:
    """Return `program`, in which operations of sizes give the numbers of Python."""
    program = change_calls(program, _OPERATIONS, _cast_sizes)
    return change_calls(program, frozenset((operator.floordiv,)), _make_divisible)


def _cast_sizes(node: torch.fx.Node) -> None:
    values = [_value(number) for number in node.args]
    if any(isinstance(value, float | torch.SymFloat) for value in values):
        node.args = tuple(
            insert_call(node, torch.sym_float, number) if isinstance(value, torch.SymInt) else number
            for number, value in zip(node.args, values, strict=True)
        )
        propagate(node)


def _make_divisible(node: torch.fx.Node) -> None:
    dividend, divisor = node.args
    values = _value(dividend), _value(divisor)
    if not all(isinstance(value, int | torch.SymInt) for value in values):
        return
    if statically_known_true(values[0] >= 0) and statically_known_true(values[1] > 0):
        return
    remainder = insert_call(node, operator.mod, dividend, divisor)
    node.args = (insert_call(node, operator.sub, dividend, remainder), divisor)


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, torch.fx.Node) else number
