"""Replace the zero points of a program by numbers.

TensorRT accepts a quantizer only if its zero points are known to be 0. In a traced program, zero points are buffers, which
could contain any number. So a buffer that contains one number becomes this number. The number is in the text of the
program, so the keys of later steps depend on it.

Rules
1. If the zero points of all channels are the same number, they become ``torch.full``. Different numbers stay a buffer,
   because TensorRT refuses them in any case.
2. If a quantizer has one scale and one zero point for the whole tensor, both become numbers in its call, as PT2E writes
   them.
3. With ``weights:``, scales and zero points come from a file that is read after the trace. Then all of them stay buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trtbuild.stages.program.quantized import register_operators

_aten = torch.ops.aten


def write_zero_points(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, torch.Tensor]) -> None:
    """Replace zero points in `graph` by numbers, in place. `values` are the values of weights and constants."""
    register_operators()
    quantized = torch.ops.quantized_decomposed
    channel_operators = (
        quantized.quantize_per_channel.default,
        quantized.dequantize_per_channel.default,
        _aten.fake_quantize_per_channel_affine.default,
    )
    scalar_forms = {
        quantized.quantize_per_tensor.tensor: quantized.quantize_per_tensor.default,
        quantized.dequantize_per_tensor.tensor: quantized.dequantize_per_tensor.default,
    }
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in channel_operators:
            _write_channels(node, values)
        elif node.target in scalar_forms and _write_tensor(node, values):
            node.target = scalar_forms[node.target]
        elif node.target is _aten.fake_quantize_per_tensor_affine.tensor_qparams and _write_tensor(node, values):
            node.target = _aten.fake_quantize_per_tensor_affine.default


def _write_channels(node: torch.fx.Node, values: Mapping[torch.fx.Node, torch.Tensor]) -> None:
    """Apply rule 1 to a call, whose arguments are (input, scales, zero points, …)."""
    zero_points: Any = node.args[2]
    value = values.get(zero_points) if isinstance(zero_points, torch.fx.Node) else None
    if value is None or not value.numel() or not bool((value == value.flatten()[0]).all()):
        return
    with node.graph.inserting_before(node):
        arguments = (list(value.shape), int(value.flatten()[0]))
        options = {"dtype": value.dtype, "device": torch.device("cpu"), "pin_memory": False}
        full = node.graph.call_function(_aten.full.default, arguments, options)
    full.meta = {key: item for key, item in node.meta.items() if key in ("nn_module_stack", "stack_trace")}
    full.meta["val"] = zero_points.meta["val"]
    node.update_arg(2, full)


def _write_tensor(node: torch.fx.Node, values: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    """Apply rule 2 to a call, whose arguments are (input, scale, zero point, …). Returns False if its scale or its zero
    point is not a single known number."""
    scale, zero_point = (
        values.get(argument) if isinstance(argument, torch.fx.Node) else None for argument in node.args[1:3]
    )
    if scale is None or zero_point is None or scale.numel() != 1 or zero_point.numel() != 1:
        return False
    node.update_arg(1, float(scale))
    node.update_arg(2, int(zero_point))
    return True
