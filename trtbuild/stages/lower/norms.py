"""Compute vector norms of float16 and bfloat16 values in float32, as PyTorch does.

ONNX's operators for norms compute the powers, and their sum, in the type of the input. float16 ends at 65,504, so the
square of 300 is infinite there.
"""

from __future__ import annotations

import torch

from trtbuild.stages.half_types import HALF_TYPES
from trtbuild.stages.lower.modules import set_stack, stack_of
from trtbuild.stages.lower.operators.calls import argument_of, change_calls
from trtbuild.stages.lower.propagate import propagate
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten
#: The orders of norms that select or count elements instead of summing powers.
_ORDERS_WITHOUT_POWERS = (0, float("inf"), float("-inf"))


def sum_norms_in_float32(program: Program, request: Request) -> Program:
    return change_calls(program, (_aten.linalg_vector_norm.default,), _compute_in_float32)


def _compute_in_float32(norm: torch.fx.Node) -> None:
    is_half = norm.args[0].meta["val"].dtype in HALF_TYPES and norm.meta["val"].dtype in HALF_TYPES
    order = argument_of(norm, 1, "ord", 2)
    if not is_half or norm.kwargs.get("dtype") is not None or order in _ORDERS_WITHOUT_POWERS:
        return
    dtype = norm.meta["val"].dtype
    with norm.graph.inserting_before(norm):
        wide = norm.graph.call_function(_aten._to_copy.default, (norm.args[0],), {"dtype": torch.float32})
    with norm.graph.inserting_after(norm):
        narrow = norm.graph.call_function(_aten._to_copy.default, (norm,), {"dtype": dtype})
    norm.replace_all_uses_with(narrow)  # also in `narrow` itself
    narrow.args = (norm,)
    norm.args = (wide, *norm.args[1:])
    for node in (wide, norm, narrow):
        set_stack(node, stack_of(norm))
        propagate(node)
