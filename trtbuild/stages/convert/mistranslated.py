"""Calls that the exporter (torch 2.13) translates into something else, by their arguments. They stay in PyTorch.

1. A padding by the border's own values that takes away: ONNX's Pad can do that with constants alone.
2. Batch normalization by the batch's own statistics, where there are running ones too: the translation takes those.
3. An average by a divisor of one's own, which ONNX's AveragePool has not.
4. Repeating each element a dynamic number of times: the copies come to stand at another axis.
5. The mean of what is scattered, which ONNX's ScatterElements has not.
6. atan2: the translation divides, so a negative zero in the denominator reverses the sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def is_mistranslated(node: torch.fx.Node) -> bool:
    """Whether the translation of a call_function node is not what the call computes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name, given = node.target._opname, _arguments(node)
    if name.startswith(("replication_pad", "reflection_pad")):
        return any(isinstance(amount, int) and amount < 0 for amount in given.get("padding") or ())
    if name.startswith("avg_pool"):
        return given.get("divisor_override") is not None
    if name == "atan2":
        return True
    if name == "repeat_interleave":
        return isinstance(given.get("repeats"), torch.fx.Node)
    if name == "scatter_reduce":
        return given.get("reduce") == "mean"
    if "batch_norm" in name:
        return given.get("training") is True and given.get("running_mean") is not None
    return False


def _arguments(node: torch.fx.Node) -> Mapping[str, Any]:
    """The arguments of a call by the names of its operator's schema; those that are not given are absent."""
    named = (argument.name for argument in node.target._schema.arguments)
    return dict(zip(named, node.args, strict=False)) | dict(node.kwargs)
