"""Remove attention masks that have no effect.

Libraries build a mask even if the caller passes no mask (transformers: ``arange(n) >= 0``, expanded over the batch).
Then each layer computes with this mask, and its engine has the mask as an input.

Rules
1. A mask is removed only if its operators show that all its elements are ``True``. Such a mask is the result of ``ones`` or
   of ``full`` with True, or a comparison ``positions >= number``, where positions are 0 or more and the number is 0 or
   less. A rearrangement of such a mask, and the ``and`` of two such masks, are removed, too.
2. Values of inputs, weights and constants are not read.
"""

from __future__ import annotations

from typing import Any

import torch

from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.functional import Program

_aten = torch.ops.aten

#: Operators whose results consist of elements of their first input.
_REARRANGEMENTS = (
    "reshape", "expand", "broadcast_to", "permute", "transpose", "t", "squeeze", "unsqueeze", "repeat", "tile", "flip",
    "select", "slice", "index", "_unsafe_index", "index_select", "gather", "clone", "alias", "contiguous",
)  # fmt: skip


def drop_true_masks(program: Program, request: Request) -> Program:
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is _aten.scaled_dot_product_attention.default:
            mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
            if isinstance(mask, torch.fx.Node) and _is_all_true(mask):
                node.args = (*node.args[:3], None, *node.args[4:])
                node.kwargs = {key: value for key, value in node.kwargs.items() if key != "attn_mask"}
    program.graph.eliminate_dead_code()
    program.exported.graph_module.recompile()
    return program


def _is_all_true(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.meta["val"].dtype is not torch.bool:
        return False
    name = getattr(node.target, "_opname", "")
    if name in ("ones", "new_ones", "ones_like"):
        return True
    if name in ("full", "new_full", "full_like"):
        return node.args[-1] is True or (node.args[-1] == 1 and not isinstance(node.args[-1], torch.fx.Node))
    if name in ("bitwise_and", "logical_and"):
        return all(isinstance(side, torch.fx.Node) and _is_all_true(side) for side in node.args[:2])
    if node.target is _aten.ge.Scalar:
        return _is_number(node.args[1]) and node.args[1] <= 0 and _is_never_negative(node.args[0])
    return _is_rearrangement(node) and _is_all_true(node.args[0])


def _is_never_negative(node: Any) -> bool:
    """Whether every element is an integer of 0 or more, for all sizes."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return False
    if node.meta["val"].dtype not in (torch.int64, torch.int32):
        return False
    if node.target is _aten.arange.default:
        return True
    if node.target in (_aten.arange.start, _aten.arange.start_step):
        step = node.args[2] if len(node.args) > 2 else 1
        return _is_number(node.args[0]) and node.args[0] >= 0 and _is_number(step) and step > 0
    if node.target is _aten.add.Tensor and not node.kwargs:
        return _is_never_negative(node.args[0]) and _is_number(node.args[1]) and node.args[1] >= 0
    return _is_rearrangement(node) and _is_never_negative(node.args[0])


def _is_rearrangement(node: torch.fx.Node) -> bool:
    return getattr(node.target, "_opname", "") in _REARRANGEMENTS and isinstance(node.args[0], torch.fx.Node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
