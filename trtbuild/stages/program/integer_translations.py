"""Translate divisions of integers into ONNX's Div and a Mod with ``fmod=1``.

A remainder belongs to a quotient that is rounded: down in Mod, and towards zero in Mod with ``fmod=1``. The exporter's
translations (torch 2.13) use Mod without ``fmod``. With TensorRT 8.6 on an H200, this Mod gave wrong remainders of
integers up to 2^30. Mod with ``fmod=1`` was exact there, and so was Div.
"""

from __future__ import annotations

from typing import Any

import torch


def register_translations(registry: Any) -> None:
    """Replace the translations of ``floor_divide`` and ``remainder`` in a registry of the exporter."""
    import onnx_ir
    from onnxscript import opset18 as onnx
    from onnxscript.function_libs.torch_lib.tensor_typing import TTensor

    def of_type(divisor: Any, dtype: Any) -> Any:
        """A divisor in the type of the dividend. The exporter may pass a Python number, or a tensor of another type."""
        if isinstance(divisor, int | float):
            return onnx_ir.tensor(divisor, dtype=dtype)
        return divisor if divisor.dtype == dtype else onnx.Cast(divisor, to=dtype)

    def has_other_sign(remainder: Any, divisor: Any, dtype: Any) -> Any:
        """Whether a remainder is not 0 and its sign differs from the divisor's."""
        zero = onnx_ir.tensor(0, dtype=dtype)
        return onnx.Or(
            onnx.And(onnx.Less(remainder, zero), onnx.Greater(divisor, zero)),
            onnx.And(onnx.Greater(remainder, zero), onnx.Less(divisor, zero)),
        )

    def floor_divide(self: TTensor, other: TTensor) -> TTensor:
        other = of_type(other, self.dtype)
        quotient = onnx.Div(self, other)
        if not self.dtype.is_integer():
            return onnx.Floor(quotient)
        if not self.dtype.is_signed():
            return quotient
        excess = has_other_sign(onnx.Mod(self, other, fmod=1), other, self.dtype)
        return onnx.Sub(quotient, onnx.Cast(excess, to=self.dtype))

    def remainder(self: TTensor, other: TTensor) -> TTensor:
        other = of_type(other, self.dtype)
        if not self.dtype.is_integer():
            return onnx.Sub(self, onnx.Mul(onnx.Floor(onnx.Div(self, other)), other))
        result = onnx.Mod(self, other, fmod=1)
        if not self.dtype.is_signed():
            return result
        return onnx.Where(has_other_sign(result, other, self.dtype), onnx.Add(result, other), result)

    def remainder_of_number(self: float, other: TTensor) -> TTensor:
        return remainder(onnx_ir.tensor(self, dtype=other.dtype), other)

    def remainder_by_number(self: TTensor, other: float) -> TTensor:
        return remainder(self, other)

    aten = torch.ops.aten
    registry.register_op(aten.floor_divide.default, floor_divide)
    registry.register_op(aten.remainder.Tensor, remainder)
    registry.register_op(aten.remainder.Scalar, remainder_by_number)
    registry.register_op(aten.remainder.Scalar_Tensor, remainder_of_number)
