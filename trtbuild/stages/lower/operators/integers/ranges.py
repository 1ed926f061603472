"""Compute ``arange`` in int64 if its result has a smaller signed integer type.

The ONNX translation computes such a range in float32, which is exact only for integers of up to 24 bits. So larger
numbers, and even the size of the result, would be wrong.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.operators.calls import change_calls, insert_call, replace
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
_SMALL_TYPES = (torch.int32, torch.int16, torch.int8)


def count_in_int64(program: Program, request: Request) -> Program:
    return change_calls(program, frozenset((_aten.arange.start_step,)), _count)


def _count(node: torch.fx.Node) -> None:
    dtype = node.meta["val"].dtype
    if dtype in _SMALL_TYPES and all(_is_integer(number) for number in node.args):
        wide = insert_call(node, node.target, *node.args, **{**node.kwargs, "dtype": torch.int64})
        replace(node, insert_call(node, _aten._to_copy.default, wide, dtype=dtype))


def _is_integer(number: Any) -> bool:
    value = number.meta["val"] if isinstance(number, torch.fx.Node) else number
    return isinstance(value, int | torch.SymInt)
