"""A quantizer: a module that rounds a tensor to the numbers of a narrow type, with operators that torch.export can trace.

A calibration stores the layout and the tensors of a quantizer, which are enough to make it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trtbuild.quantized_operators import FLOAT4, FLOAT8, INT4, INT8
from trtbuild.stages.program.quantized import register_operators

__all__ = ["FLOAT4", "FLOAT8", "INT4", "INT8", "LARGEST_NUMBERS", "Quantizer", "QuantizerLayout"]

#: Type → its largest number.
LARGEST_NUMBERS: Mapping[str, float] = {INT8: 127, INT4: 7, FLOAT8: 448, FLOAT4: 6}


@dataclass(frozen=True)
class QuantizerLayout:
    """The type of a quantizer, and which numbers share a scale.

    With the type float4e2m1 (NVFP4), the scale of a block is computed from the block's numbers and one scale for all
    blocks."""

    #: ``int8``, ``int4``, ``float8e4m3fn`` or ``float4e2m1``; None if the quantizer only multiplies by `pre_scale`.
    type: str | None
    #: The axis with one scale for each channel; None if all numbers share one scale, or if blocks have scales.
    axis: int | None
    #: The smallest number to which the quantizer rounds (-127 or -128 for int8); 0 if `type` is not an integer type.
    smallest: int
    #: How many numbers along the last axis share a scale; None without blocks.
    block: int | None = None


class Quantizer(torch.nn.Module):
    """Rounds its input as `layout` says.

    `scale` is float32, with one number for the whole tensor, for each channel, or for each block; None if the layout has no
    type. The input is multiplied by `pre_scale` before the rounding (SmoothQuant, AWQ). `pre_scale` has one number for each
    index of the input's last axis.
    """

    scale: torch.Tensor | None
    pre_scale: torch.Tensor | None
    #: Zeros. Only a quantizer with the type int8 and an axis has it.
    zero_point: torch.Tensor

    def __init__(
        self,
        layout: QuantizerLayout,
        scale: torch.Tensor | None = None,
        pre_scale: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        register_operators()
        self.layout = layout
        if (scale is None) != (layout.type is None):
            raise TypeError(f"a quantizer of type {layout.type} {'needs a' if scale is None else 'has no'} scale")
        stored_scale = None if scale is None else scale.detach().to("cpu", torch.float32)
        self.register_buffer("scale", stored_scale, persistent=False)
        self.register_buffer("pre_scale", None if pre_scale is None else pre_scale.detach().cpu(), persistent=False)
        if layout.type == INT8 and scale is not None:
            if layout.axis is None:
                self._single_scale = float(scale)  # torch.export cannot trace float() of a buffer
            else:
                zero_point = torch.zeros(scale.numel(), dtype=torch.int64)
                self.register_buffer("zero_point", zero_point, persistent=False)
        self.eval()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The arguments of the constructor that are tensors."""
        tensors = {"scale": self.scale, "pre_scale": self.pre_scale}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.pre_scale is not None:
            x = x * self.pre_scale
        layout = self.layout
        if layout.type is None:
            return x
        numbers = x.float()
        if layout.type == INT8:
            result = self._rounded_to_int8(numbers)
        elif layout.type == FLOAT4:
            result = torch.ops.trtbuild.fake_quantize_two_levels(numbers, self.scale, layout.block)
        else:
            axis, block = layout.axis or 0, layout.block or 0
            result = torch.ops.trtbuild.fake_quantize(numbers, self.scale, layout.type, axis, block, layout.smallest)
        return result.to(x.dtype)

    def _rounded_to_int8(self, x: torch.Tensor) -> torch.Tensor:
        operators = torch.ops.quantized_decomposed
        limits = (self.layout.smallest, LARGEST_NUMBERS[INT8], torch.int8)
        result: torch.Tensor
        if self.layout.axis is None:
            quantized = operators.quantize_per_tensor(x, self._single_scale, 0, *limits)
            result = operators.dequantize_per_tensor(quantized, self._single_scale, 0, *limits)
        else:
            arguments = (self.scale, self.zero_point, self.layout.axis, *limits)
            result = operators.dequantize_per_channel(operators.quantize_per_channel(x, *arguments), *arguments)
        return result
