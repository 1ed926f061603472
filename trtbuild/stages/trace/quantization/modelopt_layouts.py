"""Read the settings and the calibrated numbers of one ``TensorQuantizer`` of Model Optimizer (0.47).

| type | `num_bits` | `block_sizes` | scale |
|---|---|---|---|
| int8, one scale for all numbers or for each channel | 8 | None | largest number / 127 |
| int4, in blocks along the last axis | 4 | ``{-1: n}`` | largest number of the block / 7 |
| float8e4m3fn, one scale for all numbers or for each channel | (4, 3) | None | largest number / 448 |
| float4e2m1 in two levels (NVFP4) | (2, 1) | ``{-1: n, "type": "dynamic", "scale_bits": (4, 3)}`` | largest number / 2688 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trtbuild.stages.trace.quantization.quantizer import (
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    LARGEST_NUMBERS,
    QuantizerLayout,
)

#: (`num_bits`, whether there are blocks) → the type.
_TYPES = {(8, False): INT8, (4, True): INT4, ((4, 3), False): FLOAT8, ((2, 1), True): FLOAT4}
#: Type → its smallest number.
_SMALLEST = {INT8: -128, INT4: -8}
#: The largest maximum of a channel or a block that Model Optimizer treats as 0.
_LARGEST_ZERO = 2.0**-24


class UnknownLayout(Exception):
    """A quantizer has settings that are not in the table, or no usable numbers. The text continues a sentence that begins
    with the quantizer's name."""


def layout_of(quantizer: Any) -> QuantizerLayout:
    """The layout of a quantizer. Raises UnknownLayout."""
    if getattr(quantizer, "rotate_is_enabled", False):
        raise UnknownLayout("rotates its input")
    if quantizer._disabled or not quantizer._if_quant:
        return QuantizerLayout(None, None, 0)
    sizes = quantizer.block_sizes
    blocks = {} if sizes is None else {key: size for key, size in sizes.items() if isinstance(key, int)}
    type_ = _TYPES.get((quantizer._num_bits, bool(blocks)))
    if type_ is None or quantizer._unsigned or getattr(quantizer, "backend", None) is not None:
        raise UnknownLayout(f"quantizes to {_type_text(quantizer)}{' in blocks' if blocks else ''}")
    if getattr(quantizer, "bias", None) is not None:
        raise UnknownLayout("adds a bias (affine quantization)")
    if not quantizer.fake_quant or quantizer._dynamic:
        raise UnknownLayout("stores numbers of its type, or finds its scale while the model runs")
    if sizes is not None:
        form = (sizes.get("type"), sizes.get("scale_bits"))
        allowed = [("dynamic", (4, 3))] if type_ == FLOAT4 else [("static", None), (None, None)]
        if list(blocks) != [-1] or form not in allowed:
            raise UnknownLayout("has blocks along other axes than the last, or with scales of another type")
        smallest = _smallest(quantizer, type_)
        return QuantizerLayout(type_, None, smallest, int(blocks[-1]))
    amax = _calibrated_maxima(quantizer)
    if amax.numel() == 1:
        return QuantizerLayout(type_, None, _smallest(quantizer, type_))
    if amax.numel() not in amax.shape:
        raise UnknownLayout("has maxima for several axes")
    return QuantizerLayout(type_, list(amax.shape).index(amax.numel()), _smallest(quantizer, type_))


def scale_of(quantizer: Any, layout: QuantizerLayout, reads_weight: bool) -> torch.Tensor:
    """The scales of a calibrated quantizer, as `Quantizer` takes them. `reads_weight` is whether it reads a weight.

    Zeros stay zero with any scale, so the scale of a weight's zeros is 1. Raises UnknownLayout if all numbers that share a
    scale were 0 in the calibration, and do not belong to a weight: the model may get other numbers."""
    assert layout.type is not None
    amax, largest_zero = _calibrated_maxima(quantizer), _LARGEST_ZERO
    if layout.type == FLOAT4:
        amax, largest_zero = amax.amax() / LARGEST_NUMBERS[FLOAT8], 0.0
    is_zero = amax <= largest_zero
    if bool(is_zero.any()) and not reads_weight:
        raise UnknownLayout("has a scale of 0: all numbers of its calibration were 0 or nearly 0")
    scale = torch.where(is_zero, 1.0, amax / LARGEST_NUMBERS[layout.type])
    return scale.reshape(()) if scale.numel() == 1 else scale.flatten()


def comparison_shape(quantizer: Any, layout: QuantizerLayout, samples: int) -> list[int]:
    """The shape of the random input for a comparison. The input has at least `samples` numbers for each scale, except if
    the quantizer accepts only one shape. Raises UnknownLayout if this shape is not known."""
    if layout.block is not None and layout.type != FLOAT4:
        sizes: Sequence[int] | None = getattr(quantizer, "_original_shape", None)
        if sizes is None:
            raise UnknownLayout("has never read a tensor")
        unpadded = getattr(quantizer, "_slices", None)
        return [*sizes[:-1], sizes[-1] if unpadded is None else unpadded[-1].stop]
    pre_scale = quantizer.pre_quant_scale
    if layout.axis is not None:
        shape = list(_calibrated_maxima(quantizer).shape)
        if 1 in shape:
            shape[shape.index(1)] = samples
        return shape
    columns = (layout.block or samples) if pre_scale is None else pre_scale.numel()
    return [math.ceil(samples / columns), columns]


def largest_numbers(quantizer: Any, layout: QuantizerLayout, shape: Sequence[int]) -> torch.Tensor:
    """For each number of a tensor of `shape`, the largest number that the calibration found for its scale. The result
    broadcasts to `shape`."""
    amax = _calibrated_maxima(quantizer)
    if layout.type == FLOAT4:
        return amax.amax()
    if layout.block is None:
        return amax
    return amax.reshape([*shape[:-1], -1]).repeat_interleave(layout.block, -1)[..., : shape[-1]]


def _smallest(quantizer: Any, type_: str) -> int:
    smallest = _SMALLEST.get(type_, 0)
    return smallest + 1 if smallest and quantizer._narrow_range else smallest


def _calibrated_maxima(quantizer: Any) -> torch.Tensor:
    """The largest numbers that the calibration found (``amax``), as float32 on the CPU. Raises UnknownLayout."""
    amax = getattr(quantizer, "_amax", None)
    if amax is None:
        raise UnknownLayout("is not calibrated")
    numbers: torch.Tensor = amax.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(numbers).all()) or bool((numbers < 0).any()):
        raise UnknownLayout("has scales that are negative or not finite")
    return numbers


def _type_text(quantizer: Any) -> str:
    bits = quantizer._num_bits
    if isinstance(bits, tuple):
        return f"{1 + sum(bits)}-bit floats"
    return f"{'unsigned ' if quantizer._unsigned else ''}{bits}-bit integers"
