"""Write quantizers as TensorRT has them: a quantizer that uses all numbers of its type, and a dequantizer.

Rules
1. ONNX's QuantizeLinear limits a value to its type's range (-128..127 for int8). A quantizer of PyTorch has a smallest and
   a largest number (-127..127). If these are narrower than the type's range, the value is clamped before the quantizer.
2. ``fake_quantize`` is a quantizer and a dequantizer. It stays in PyTorch if neither int8 nor uint8 contains its range, or
   if its input is not float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trtbuild.stages.program.quantized import NAMESPACE, register_operators

_aten, _quantized = torch.ops.aten, torch.ops.quantized_decomposed  # torch looks up their operators at each use


def _quantize(x: torch.Tensor, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype) -> Any:
    limits = torch.iinfo(dtype)
    if (low, high) == (limits.min, limits.max):
        return NotImplemented
    x = x.clamp((low - zero_point) * scale, (high - zero_point) * scale)
    return _quantized.quantize_per_tensor.default(x, scale, zero_point, limits.min, limits.max, dtype)


def _quantize_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Any:
    limits = torch.iinfo(dtype)
    if (low, high) == (limits.min, limits.max):
        return NotImplemented
    shape = [-1 if number == axis % x.dim() else 1 for number in range(x.dim())]
    least, most = (((bound - zero_points) * scales).to(x.dtype).reshape(shape) for bound in (low, high))
    x = torch.minimum(torch.maximum(x, least), most)
    return _quantized.quantize_per_channel.default(x, scales, zero_points, axis, limits.min, limits.max, dtype)


def _fake_quantize(x: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    dtype = _type_for(low, high)
    if dtype is None or x.dtype is not torch.float32:
        return NotImplemented
    quantized = _quantized.quantize_per_tensor.default(x, scale, zero_point, low, high, dtype)
    return _quantized.dequantize_per_tensor.default(quantized, scale, zero_point, low, high, dtype)


def _fake_quantize_channels(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, low: int, high: int
) -> Any:
    dtype = _type_for(low, high)
    if dtype is None or x.dtype is not torch.float32:
        return NotImplemented
    quantized = _quantized.quantize_per_channel.default(x, scales, zero_points, axis, low, high, dtype)
    return _quantized.dequantize_per_channel.default(quantized, scales, zero_points, axis, low, high, dtype)


def _type_for(low: int, high: int) -> torch.dtype | None:
    for dtype in (torch.int8, torch.uint8):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return None


#: Operator → its decomposition.
QUANTIZERS: Mapping[Any, Callable[..., Any]] = {
    _aten.fake_quantize_per_tensor_affine.default: _fake_quantize,
    _aten.fake_quantize_per_channel_affine.default: _fake_quantize_channels,
}


def is_quantizer(target: object) -> bool:
    """Whether `quantizers` may replace calls of an operator."""
    return target in QUANTIZERS or getattr(target, "namespace", None) == NAMESPACE


def quantizers() -> Mapping[Any, Callable[..., Any]]:
    """Operator → its decomposition."""
    register_operators()
    return {
        **QUANTIZERS,
        _quantized.quantize_per_tensor.default: _quantize,
        _quantized.quantize_per_channel.default: _quantize_channels,
    }
