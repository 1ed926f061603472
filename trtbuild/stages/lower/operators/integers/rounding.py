"""Remove the rounding of integers. Rounding does not change them, and ONNX's Floor, Ceil and Round take floats only."""

from __future__ import annotations

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_ROUNDING_OPERATORS = frozenset(packet.default for packet in (_aten.trunc, _aten.floor, _aten.ceil, _aten.round))


def drop_integer_rounding(program: Program, request: Request) -> Program:
    return change_calls(program, _ROUNDING_OPERATORS, _copy_integers)


def _copy_integers(node: torch.fx.Node) -> None:
    (source,) = node.args[:1]
    if not source.meta["val"].is_floating_point():
        replace(node, insert_call(node, _aten.clone.default, source))
