"""Define the quantize and dequantize operators of programs, and translate PyTorch's quantizers to ONNX.

PT2E and torchao write PyTorch's operators, which are in ``torch.ops.quantized_decomposed``. ``import torch`` does not
define them, and ``torch.export.load`` fails without them. `trtbuild.quantized_operators` has those of trtbuild, and
`trtbuild.stages.program.quantized_onnx` their translations.

The translations of quantizers in this file replace those of the exporter (torch 2.13), which ignore the smallest and the
largest number of a quantizer, or add a Clip on int8 that TensorRT refuses. If a quantizer uses only some numbers of its
type, the lower step clamps its input. So here, each quantizer uses all numbers of its type. Dequantizers have the
exporter's translations.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from trtbuild import quantized_operators

#: The namespace of PyTorch's operators. A serialized program that calls one contains this text, because the archive is not
#: compressed.
NAMESPACE = "quantized_decomposed"


def register_operators() -> None:
    """Define the operators in this process."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    quantized_operators.define_operators()


def register_operators_of(program: bytes) -> None:
    """Define the operators if a serialized program calls one of them."""
    if NAMESPACE.encode() in program or quantized_operators.OPERATOR_MARK in program:
        register_operators()


def register_translations(registry: Any) -> None:
    """Replace the translations of quantizers in a registry of the exporter. The operators must be defined."""
    from onnxscript import opset18 as onnx
    from onnxscript.onnx_types import TensorType

    def quantize_per_tensor(
        x: TensorType, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
    ) -> TensorType:
        _refuse_narrow(quant_min, quant_max, dtype)
        return onnx.QuantizeLinear(x, scale, onnx.Cast(zero_point, to=dtype))

    def quantize_per_channel(
        x: TensorType,
        scales: TensorType,
        zero_points: TensorType,
        axis: int,
        quant_min: int,
        quant_max: int,
        dtype: int,
    ) -> TensorType:
        _refuse_narrow(quant_min, quant_max, dtype)
        return onnx.QuantizeLinear(x, onnx.CastLike(scales, x), onnx.Cast(zero_points, to=dtype), axis=axis)

    operators = torch.ops.quantized_decomposed
    registry.register_op(operators.quantize_per_tensor.default, quantize_per_tensor)
    registry.register_op(operators.quantize_per_channel.default, quantize_per_channel)


#: onnx.TensorProto.DataType of uint8 and int8 → (min, max).
_RANGES = {2: (0, 255), 3: (-128, 127)}


def _refuse_narrow(low: int, high: int, dtype: int) -> None:
    if _RANGES.get(dtype) != (low, high):
        raise ValueError(f"a quantizer to {low}..{high}: ONNX has no such limits")
