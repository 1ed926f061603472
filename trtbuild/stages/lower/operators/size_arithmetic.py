"""Divide sizes as Python does.

The ONNX translation of ``//`` rounds towards zero. Python rounds down, so ``-(-size // 2)`` rounds up. So this pass
subtracts the remainder from a dividend that may be negative.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.stages.lower.operators.calls import change_calls, insert_call
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program


def divide_sizes_as_python(program: Program, request: Request) -> Program:
    """Return `program`, in which divisions of sizes round down."""
    return change_calls(program, frozenset((operator.floordiv,)), _make_divisible)


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
