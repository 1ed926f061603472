"""A quantizer: a module that rounds a tensor to the numbers of a narrow type, with operators that torch.export can trace.

Its `layout` says to which type, and which numbers share a scale. Its tensors are the scales. Both together are all that is
needed to make the quantizer again, so calibrations store them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from trtbuild.stages.program.quantized import register_operators

#: The largest number of int8.
LARGEST_INT8 = 127


@dataclass(frozen=True)
class QuantizerLayout:
    """The type of a quantizer, and which numbers share a scale.

    `axis` is the axis with one scale for each channel; None if all numbers share one scale. `smallest` is the smallest
    number of the type that is used: -127 or -128."""

    type: str
    axis: int | None
    smallest: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises KeyError or TypeError for data of another form."""
        return cls(**data)


class Quantizer(torch.nn.Module):
    """Rounds its input as `layout` says. `scale` has one number, or one number for each channel."""

    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, layout: QuantizerLayout, scale: torch.Tensor) -> None:
        super().__init__()
        register_operators()
        self.layout = layout
        self.register_buffer("scale", scale.detach().to("cpu", torch.float32), persistent=False)
        if layout.axis is None:
            self._number = float(scale)  # torch.export cannot trace float() of a buffer
        else:
            zero_point = torch.zeros(scale.numel(), dtype=torch.int64)
            self.register_buffer("zero_point", zero_point, persistent=False)
        self.eval()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The arguments of the constructor that are tensors."""
        return {"scale": self.scale}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operators = torch.ops.quantized_decomposed
        limits = (self.layout.smallest, LARGEST_INT8, torch.int8)
        if self.layout.axis is None:
            quantized = operators.quantize_per_tensor(x.float(), self._number, 0, *limits)
            return operators.dequantize_per_tensor(quantized, self._number, 0, *limits).to(x.dtype)
        arguments = (self.scale, self.zero_point, self.layout.axis, *limits)
        quantized = operators.quantize_per_channel(x.float(), *arguments)
        return operators.dequantize_per_channel(quantized, *arguments).to(x.dtype)
