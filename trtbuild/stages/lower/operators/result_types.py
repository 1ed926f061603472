"""Cast the inputs of a call to the type of its result, where the ONNX translation would not do so.

Rules
1. A mean or a softmax has an argument `dtype` (``x.mean(1, dtype=torch.float32)``). PyTorch casts the input first. The
   translations compute in the type of the input, and cast the result. So the mean of integers would be rounded, and a
   softmax of float16 values would be 0 instead of a small number.
2. ``1.0 - integers`` and ``integers**floats`` give floats, so PyTorch casts the tensor of integers first. For such a
   difference, the exporter fails without naming the call. The translation of such a power would give integers.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.operators.calls import argument_of, change_calls, insert_call
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: Operators with an argument `dtype`. (The translations of sum, prod and cumsum cast their inputs.)
_OPERATORS = frozenset(
    (
        *(_aten.mean.dim, _aten.softmax.int, _aten.special_softmax.default),
        *(_aten.log_softmax.int, _aten.special_log_softmax.default),
    )
)

#: Operators whose first operand the exporter does not cast (rule 2): a number in a difference, a tensor in a power.
_PROMOTING_OPERATORS = frozenset((_aten.sub.Tensor, _aten.rsub.Scalar, _aten.pow.Tensor_Tensor))


def cast_before_reductions(program: Program, request: Request) -> Program:
    """Apply rule 1."""
    return change_calls(program, _OPERATORS, _cast_input)


def _cast_input(node: torch.fx.Node) -> None:
    position = [argument.name for argument in node.target._schema.arguments].index("dtype")
    dtype = argument_of(node, position, "dtype", None)
    if dtype is None:
        return
    (source,) = node.args[:1]
    node.args = node.args[:position]
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "dtype"}
    if source.meta["val"].dtype is not dtype:
        node.args = (insert_call(node, _aten._to_copy.default, source, dtype=dtype), *node.args[1:])
    propagate(node)


def cast_promoted_operands(program: Program, request: Request) -> Program:
    """Apply rule 2."""
    return change_calls(program, _PROMOTING_OPERATORS, _cast_operands)


def _cast_operands(node: torch.fx.Node) -> None:
    if node.target is _aten.sub.Tensor and isinstance(node.args[0], torch.fx.Node):
        return  # the exporter casts the operands if the first one is a tensor
    dtype = node.meta["val"].dtype
    node.args = tuple(
        insert_call(node, _aten._to_copy.default, operand, dtype=dtype) if _has_other_type(operand, dtype) else operand
        for operand in node.args
    )


def _has_other_type(operand: Any, dtype: torch.dtype) -> bool:
    """Whether `operand` is a tensor of another type than `dtype`."""
    value = operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand
    return isinstance(value, torch.Tensor) and value.dtype is not dtype
