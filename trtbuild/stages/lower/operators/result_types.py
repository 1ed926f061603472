"""Cast the input of a mean or a softmax to the type that the caller asks for (``x.mean(1, dtype=torch.float32)``).

PyTorch casts the input first. The ONNX translations compute in the type of the input, and cast the result. So the mean of
integers would be rounded, and a softmax of float16 values would be 0 instead of a small number.
"""

from __future__ import annotations

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


def cast_before_reductions(program: Program, request: Request) -> Program:
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
