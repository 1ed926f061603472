"""Put the result of ``convert_pt2e`` into evaluation mode.

``eval()`` raises an error for a module from torch.export, because the mode is part of its graph: for example, the graph may
have a dropout in training mode. torchao's `move_exported_model_to_eval` replaces such operators.
"""

from __future__ import annotations

import copy

import torch

from trtbuild.stages.program.quantized import NAMESPACE


def in_evaluation_mode(module: torch.nn.Module, *, copied: bool = False) -> torch.nn.Module:
    """Return `module`, in evaluation mode if it is a result of ``convert_pt2e``. Other modules are not changed.

    With `copied`, `module` itself is never changed; a copy is returned if necessary.
    """
    if not (module.training and isinstance(module, torch.fx.GraphModule) and is_quantized(module)):
        return module
    try:
        from torchao.quantization.pt2e import move_exported_model_to_eval
    except ImportError:  # the check for training mode, which the caller makes, raises an error
        return module
    result = copy.deepcopy(module) if copied else module
    move_exported_model_to_eval(result)
    for submodule in result.modules():
        submodule.training = False
    return result


def is_quantized(module: torch.fx.GraphModule) -> bool:
    """Whether a graph calls PyTorch's own quantize or dequantize operators, which ``convert_pt2e`` writes."""
    return any(getattr(node.target, "namespace", None) == NAMESPACE for node in module.graph.nodes)
