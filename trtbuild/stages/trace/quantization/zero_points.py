"""Make zero points numbers of the program.

TensorRT takes a quantizer if its zero points are 0, so a quantizer whose zero points could be any number would stay in
PyTorch. In a traced program they are buffers. A buffer with one number becomes this number; the trace's key has the
buffers' bytes.

Rules
1. Zero points with one number for all channels become ``torch.full``. Different numbers stay a buffer: TensorRT refuses
   them in any case.
2. A scale and a zero point of a whole tensor become numbers in the call, as PT2E writes them.
3. With ``weights:``, values come from a file that is read after the trace. Then all of them stay buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trtbuild.stages.program.quantized import register_operators

_aten = torch.ops.aten


def write_zero_points(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, torch.Tensor]) -> None:
    """Replace zero points in place. `values` are the values of weights and constants."""
    register_operators()
    quantized = torch.ops.quantized_decomposed
    channels = (
        quantized.quantize_per_channel.default,
        quantized.dequantize_per_channel.default,
        _aten.fake_quantize_per_channel_affine.default,
    )
    tensors = {
        quantized.quantize_per_tensor.tensor: quantized.quantize_per_tensor.default,
        quantized.dequantize_per_tensor.tensor: quantized.dequantize_per_tensor.default,
    }
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in channels:
            _write_channels(node, values)
        elif node.target in tensors and _write_tensor(node, values):
            node.target = tensors[node.target]
        elif node.target is _aten.fake_quantize_per_tensor_affine.tensor_qparams and _write_tensor(node, values):
            node.target = _aten.fake_quantize_per_tensor_affine.default


def _write_channels(node: torch.fx.Node, values: Mapping[torch.fx.Node, torch.Tensor]) -> None:
    points: Any = node.args[2]
    value = values.get(points) if isinstance(points, torch.fx.Node) else None
    if value is None or not value.numel() or not bool((value == value.flatten()[0]).all()):
        return
    with node.graph.inserting_before(node):
        arguments = (list(value.shape), int(value.flatten()[0]))
        options = {"dtype": value.dtype, "device": torch.device("cpu"), "pin_memory": False}
        full = node.graph.call_function(_aten.full.default, arguments, options)
    full.meta = {key: item for key, item in node.meta.items() if key in ("nn_module_stack", "stack_trace")}
    full.meta["val"] = points.meta["val"]
    node.update_arg(2, full)


def _write_tensor(node: torch.fx.Node, values: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    found = [values.get(argument) if isinstance(argument, torch.fx.Node) else None for argument in node.args[1:3]]
    scale, point = found
    if scale is None or point is None or scale.numel() != 1 or point.numel() != 1:
        return False
    node.update_arg(1, float(scale))
    node.update_arg(2, int(point))
    return True
