"""Put the result of ``convert_pt2e`` into evaluation mode.

``eval()`` of a module that torch.export made raises an error: the operators of training are part of its graph. For a
quantized one torchao has `move_exported_model_to_eval`, which replaces them.
"""

from __future__ import annotations

import torch

from trtbuild.stages.program.quantized import NAMESPACE


def in_evaluation_mode(module: torch.nn.Module) -> torch.nn.Module:
    """Return `module`, in evaluation mode if it is a result of ``convert_pt2e``. Other modules are not changed."""
    if not (module.training and isinstance(module, torch.fx.GraphModule) and _is_quantized(module)):
        return module
    try:
        from torchao.quantization.pt2e import move_exported_model_to_eval
    except ImportError:  # the caller's check says that the module is in training mode
        return module
    move_exported_model_to_eval(module)
    for part in module.modules():
        part.training = False
    return module


def _is_quantized(module: torch.fx.GraphModule) -> bool:
    return any(getattr(node.target, "namespace", None) == NAMESPACE for node in module.graph.nodes)
