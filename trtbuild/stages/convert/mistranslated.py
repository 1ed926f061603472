"""Find calls whose ONNX translation is wrong (exporter of torch 2.13). These calls stay in PyTorch.

1. Negative padding in the modes reflect and replicate: ONNX's Pad removes elements in the mode constant only.
2. Batch normalization by the statistics of the batch in a module that has running statistics: the translation uses the
   running statistics.
3. Average pooling with `divisor_override`: ONNX's AveragePool has no such attribute.
4. Repeating each element a dynamic number of times: the translation puts the copies on the wrong axis.
5. Scattering with the reduction mean: ONNX's ScatterElements does not have it.
6. atan2: the translation divides, so a negative zero in the denominator reverses the sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def is_mistranslated(node: torch.fx.Node) -> bool:
    """Whether the translation of a call_function node gives other results than the call."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name, arguments = node.target._opname, _arguments(node)
    if name.startswith(("replication_pad", "reflection_pad")):
        return any(isinstance(amount, int) and amount < 0 for amount in arguments.get("padding") or ())
    if name.startswith("avg_pool"):
        return arguments.get("divisor_override") is not None
    if name == "atan2":
        return True
    if name == "repeat_interleave":
        return isinstance(arguments.get("repeats"), torch.fx.Node)
    if name == "scatter_reduce":
        return arguments.get("reduce") == "mean"
    if "batch_norm" in name:
        return arguments.get("training") is True and arguments.get("running_mean") is not None
    return False


def _arguments(node: torch.fx.Node) -> Mapping[str, Any]:
    """The arguments of a call, by their names in the operator's schema; omitted arguments are absent."""
    names = (argument.name for argument in node.target._schema.arguments)
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
