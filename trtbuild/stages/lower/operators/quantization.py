"""Write quantizers in the form that TensorRT accepts.

Rules
1. ONNX's QuantizeLinear limits a value to the range of the result's type (-128..127 for int8). A quantizer of PyTorch may
   have narrower limits, for example -127 and 127. Then the value is clamped before the quantizer.
2. ``fake_quantize`` becomes a quantizer and a dequantizer. It stays in PyTorch if neither int8 nor uint8 contains its
   range, or if its input is not float32.
3. A quantizer of ``quantized_decomposed`` to a float type (float8) stays in PyTorch, because the numbers of this type are
   not all whole.

A decomposition returns NotImplemented if it does not change the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trtbuild.stages.program.quantized import NAMESPACE, register_operators

_aten, _quantized = torch.ops.aten, torch.ops.quantized_decomposed  # torch looks up their operators at each use


def _quantize(x: torch.Tensor, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype) -> Any:
    if not _is_narrower(low, high, dtype):
        return NotImplemented
    limits = torch.iinfo(dtype)
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
    if not _is_narrower(low, high, dtype):
        return NotImplemented
    limits = torch.iinfo(dtype)
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


def _is_narrower(low: int, high: int, dtype: torch.dtype) -> bool:
    """Whether the limits of a quantizer differ from those of its type (rule 1). False for float types (rule 3)."""
    if dtype.is_floating_point:
        return False
    limits = torch.iinfo(dtype)
    return (low, high) != (limits.min, limits.max)


def _type_for(low: int, high: int) -> torch.dtype | None:
    """The type for the range of a ``fake_quantize``, or None (rule 2)."""
    for dtype in (torch.int8, torch.uint8):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return None


#: Fake quantizer of PyTorch → its decomposition.
_FAKE_QUANTIZERS: Mapping[Any, Callable[..., Any]] = {
    _aten.fake_quantize_per_tensor_affine.default: _fake_quantize,
    _aten.fake_quantize_per_channel_affine.default: _fake_quantize_channels,
}


def is_quantizer(target: object) -> bool:
    """Whether `quantizers` may have a decomposition of an operator."""
    return target in _FAKE_QUANTIZERS or getattr(target, "namespace", None) == NAMESPACE


def quantizers() -> Mapping[Any, Callable[..., Any]]:
    """Quantizer → its decomposition. Defines the operators that the quantizers call, if they are not defined yet."""
    register_operators()
    return {
        **_FAKE_QUANTIZERS,
        _quantized.quantize_per_tensor.default: _quantize,
        _quantized.quantize_per_channel.default: _quantize_channels,
    }
