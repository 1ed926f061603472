"""Widen the limits of a weight's quantizer if no number of the weight is outside the limits.

PyTorch quantizes weights to -127..127, and TensorRT to -128..127. The lower step writes a clamp for the difference.
TensorRT 8.6 cannot compute a quantizer that reads a clamped weight ("Could not find any implementation"), and other
releases would not store the weight in int8. But a scale is usually the largest number of the weight divided by 127, so
the clamp changes nothing. If this is so for a quantizer, its limits become -128..127, and no clamp is needed.

With ``weights:``, the weights are read after the trace, so nothing is widened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trtbuild.stages.program.quantized import register_operators

_aten = torch.ops.aten

#: The limits of int8.
_INT8 = (-128, 127)
#: Operators whose result is their input if the dtype is the same.
COPIES = (_aten.to.dtype, _aten._to_copy.default, _aten.detach.default, _aten.alias.default)

#: The placeholder of a weight or a constant → its value.
Values = Mapping[torch.fx.Node, torch.Tensor]


def widen_weight_limits(graph: torch.fx.Graph, values: Values) -> None:
    """Widen the limits of quantizers in `graph`, in place. `values` are the values of weights and constants."""
    register_operators()
    quantized = torch.ops.quantized_decomposed
    #: Operator → the positions of two arguments: the axis (None for a whole tensor), and the smallest number.
    positions: dict[Any, tuple[int | None, int]] = {
        quantized.quantize_per_tensor.default: (None, 3),
        quantized.quantize_per_channel.default: (3, 4),
        _aten.fake_quantize_per_tensor_affine.default: (None, 3),
        _aten.fake_quantize_per_channel_affine.default: (3, 4),
    }
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in positions:
            continue
        axis_position, low_position = positions[node.target]
        low, high = node.args[low_position : low_position + 2]
        axis = None if axis_position is None else node.args[axis_position]
        numbers = _quantized_numbers(node, axis, values)
        if numbers is None or not _INT8[0] <= low < 0 < high <= _INT8[1]:
            continue
        if bool(numbers.min() >= low) and bool(numbers.max() <= high):
            node.update_arg(low_position, _INT8[0])
            node.update_arg(low_position + 1, _INT8[1])


def _quantized_numbers(node: torch.fx.Node, axis: int | None, values: Values) -> torch.Tensor | None:
    """The numbers that a quantizer without limits would give for its weight. None if the weight or the scales are not
    known, if the weight has no elements, or if a zero point is not 0."""
    weight, scale = values.get(source_of(node.args[0])), node.args[1]
    if isinstance(scale, torch.fx.Node):
        scale = values.get(scale)
    if weight is None or scale is None or not weight.numel() or not _is_zero(node.args[2], values):
        return None
    if isinstance(scale, torch.Tensor) and axis is not None:
        scale = scale.reshape([-1 if number == axis % weight.dim() else 1 for number in range(weight.dim())])
    return torch.round(weight / scale)


def source_of(node: Any) -> Any:
    """Follow `node` back through copies that do not change the dtype. Returns the node that they copy; `node` itself if it
    is not such a copy."""
    while isinstance(node, torch.fx.Node) and node.target in COPIES:
        source = node.all_input_nodes[0]
        if source.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = source
    return node


def _is_zero(zero_point: Any, values: Values) -> bool:
    if not isinstance(zero_point, torch.fx.Node):
        return bool(zero_point == 0)
    if zero_point.target is _aten.full.default:
        return bool(zero_point.args[1] == 0)
    value = values.get(zero_point)
    return value is not None and not bool(value.any())
