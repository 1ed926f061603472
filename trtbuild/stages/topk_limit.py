"""The limit of TensorRT's TopK. Sorts and searches that may give more elements stay in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

#: The largest number of elements that TensorRT's TopK gives (TensorRT's documentation of the operator).
_TOPK_LIMIT = 3840


def may_exceed_topk_limit(count: Any) -> bool:
    """Whether a number of elements may exceed the limit. `count` is an int, a SymInt, or the node of a SymInt."""
    if isinstance(count, torch.fx.Node):
        count = count.meta["val"]
    if isinstance(count, torch.SymInt):
        count = count.node.shape_env.bound_sympy(count.node.expr).upper
    return bool(count > _TOPK_LIMIT)
