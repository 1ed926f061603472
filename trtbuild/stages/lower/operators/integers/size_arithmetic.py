"""Round and divide sizes as Python does.

Rules
1. Python multiplies a size and a float in float64, and ONNX in float32. So the results of ``math.floor(size * 1.3)`` may
   differ. This pass replaces the float by a fraction: ``size * 13 // 10``. It does so only if the result is Python's for
   every size (`Symbols.rounded_product`), and if no intermediate number exceeds `_LARGEST_NUMBER`. Otherwise the call does
   not change, and stays in PyTorch.
2. Python's ``//`` rounds down, and its ONNX translation rounds towards zero. So this pass subtracts the remainder from the
   dividend first, if the dividend or the divisor can be negative (``-size // 2``).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols

#: Functions that round a float to a whole number.
_ROUNDING_FUNCTIONS = frozenset((math.trunc, math.floor, math.ceil))
#: TensorRT 8.6 computes sizes in 32 bits.
_LARGEST_NUMBER = 2**31 - 1


def round_sizes_as_python(program: Program, request: Request) -> Program:
    """Apply rule 1 to `program`."""
    symbols = Symbols(program)
    return change_calls(program, _ROUNDING_FUNCTIONS, lambda node: _write_with_integers(node, symbols))


def _write_with_integers(node: torch.fx.Node, symbols: Symbols) -> None:
    value = node.meta.get("val")
    rounded = symbols.rounded_product(value.node.expr) if isinstance(value, torch.SymInt) else None
    operand = None if rounded is None else _find_size(node, rounded.operand)
    if rounded is None or operand is None:
        return
    numerator, denominator = rounded.fraction.as_integer_ratio()
    if numerator * symbols.interval(rounded.operand)[1] + denominator > _LARGEST_NUMBER:
        return
    result = operand
    if numerator != 1:
        result = insert_call(node, operator.mul, result, numerator)
    if denominator != 1:
        if rounded.rounds_up:
            result = insert_call(node, operator.add, result, denominator - 1)
        result = insert_call(node, operator.floordiv, result, denominator)
    if result is not operand:
        result.meta["val"] = value  # the old value, because the readers of the node are not run again
    replace(node, result)


def _find_size(node: torch.fx.Node, expr: Any) -> torch.fx.Node | None:
    """The node with the size `expr` among the nodes from which `node` is computed."""
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        value = source.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == expr:
            return source
        if isinstance(value, torch.SymInt | torch.SymFloat):
            waiting += source.all_input_nodes
    return None


def divide_sizes_as_python(program: Program, request: Request) -> Program:
    """Apply rule 2 to `program`."""
    return change_calls(program, frozenset((operator.floordiv,)), _subtract_remainder)


def _subtract_remainder(node: torch.fx.Node) -> None:
    dividend, divisor = node.args
    dividend_value, divisor_value = _value(dividend), _value(divisor)
    if not all(isinstance(value, int | torch.SymInt) for value in (dividend_value, divisor_value)):
        return
    if statically_known_true(dividend_value >= 0) and statically_known_true(divisor_value > 0):
        return
    remainder = insert_call(node, operator.mod, dividend, divisor)
    node.args = (insert_call(node, operator.sub, dividend, remainder), divisor)


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, torch.fx.Node) else number
