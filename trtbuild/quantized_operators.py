"""Operators that PyTorch lacks: quantizers to int4, float8 and float4, and a dequantizer of these types and int8.

    trtbuild::fake_quantize(Tensor x, Tensor scale, str element, int axis, int block_size, int smallest) -> Tensor
    trtbuild::fake_quantize_two_levels(Tensor x, Tensor scale, int block_size) -> Tensor
    trtbuild::dequantize(Tensor values, Tensor scale, str element, int axis, int block_size) -> Tensor

Traced programs call them, so every process that reads a program defines them: workers, and processes that run a package.

Rules
1. ``fake_quantize`` computes ONNX's QuantizeLinear, then DequantizeLinear. It divides by the scale, rounds half to even,
   limits the result to the range of the type `element` (ONNX: ``saturate=1``), and multiplies by the scale. The range of
   float8e4m3fn is -448 to 448. `smallest` is the lower limit of an integer type. For other types, it has no effect.
2. `scale` has one number, or one for each index of `axis`. If `block_size` is not 0, `scale` has one number for each block
   of `block_size` numbers along the last axis. The last block may have fewer numbers.
3. ``fake_quantize_two_levels`` computes NVFP4: each block along the last axis is rounded to float4e2m1. `scale` has one
   number. The scale of a block is `scale` times a float8e4m3fn number. This product is about one sixth of the largest
   absolute value in the block, because the largest number of float4e2m1 is 6. A block of zeros has the scale `scale`.
4. ``dequantize`` reads stored numbers, which have ONNX's form. int8 is stored as int8, and float8e4m3fn as bytes (uint8). A
   byte has two numbers of a 4-bit type, which are neighbours along the last axis. The first is in the low bits.
5. Inputs and results are float32, except stored numbers. No branch of the functions depends on the numbers of a tensor,
   and the functions run on every device.

torch is imported when a function runs, because packages also run where torch is not installed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: The namespace of the operators, and the text that a serialized program contains if it calls one of them.
NAMESPACE, OPERATOR_MARK = "trtbuild", b"torch.ops.trtbuild."

#: The types of ``fake_quantize`` and ``dequantize``, by ONNX's names.
INT8, INT4, FLOAT8, FLOAT4 = "int8", "int4", "float8e4m3fn", "float4e2m1"
#: The types with two numbers in a byte.
FOUR_BITS = (INT4, FLOAT4)

_LARGEST_FLOAT8, _LARGEST_FLOAT4 = 448.0, 6.0
#: The largest number of each integer type.
_LARGEST_INTEGERS = {INT8: 127, INT4: 7}
#: The numbers of float4e2m1 without their sign, by their lower three bits.
_FLOAT4_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: The borders between these numbers. A value at a border is rounded to the number whose last bit is 0. At every second
#: border, this is the larger number.
_FLOAT4_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

_SCHEMAS = {
    "fake_quantize": "(Tensor x, Tensor scale, str element, int axis, int block_size, int smallest) -> Tensor",
    "fake_quantize_two_levels": "(Tensor x, Tensor scale, int block_size) -> Tensor",
    "dequantize": "(Tensor values, Tensor scale, str element, int axis, int block_size) -> Tensor",
}


@functools.cache
def define_operators() -> Any:
    """Define the operators, once in a process. They exist as long as the returned `torch.library.Library`."""
    import torch

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    functions = {
        "fake_quantize": (_fake_quantize, lambda x, *_: torch.empty_like(x)),
        "fake_quantize_two_levels": (_fake_quantize_two_levels, lambda x, *_: torch.empty_like(x)),
        "dequantize": (dequantize, _dequantized_like),
    }
    for name, (function, fake_function) in functions.items():
        library.define(name + _SCHEMAS[name])
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake_function, lib=library)
    return library


def quantize(x: torch.Tensor, scale: torch.Tensor, element: str, axis: int, block_size: int, smallest: int) -> Any:
    """The numbers of `x` in the stored form (rules 1, 2 and 4).

    Raises ValueError if `element` has 4 bits and the last axis has an odd size, because two numbers share a byte."""
    codes = _codes(x / _scale_of_each_number(scale, x, axis, block_size), element, smallest)
    return _packed(codes) if element in FOUR_BITS else codes


def dequantize(values: torch.Tensor, scale: torch.Tensor, element: str, axis: int, block_size: int) -> Any:
    """Convert stored `values` to float32 numbers (rules 2 and 4)."""
    codes = _unpacked(values) if element in FOUR_BITS else values
    return _numbers(codes, element, scale.dtype) * _scale_of_each_number(scale, codes, axis, block_size)


def block_scales(x: torch.Tensor, scale: torch.Tensor, block_size: int) -> Any:
    """The float8e4m3fn number for each block along the last axis of `x` (rule 3), as one byte."""
    import torch

    padding = -x.shape[-1] % block_size
    blocks = torch.nn.functional.pad(x, (0, padding)).unflatten(-1, (-1, block_size))
    scales = blocks.abs().amax(-1) / (_LARGEST_FLOAT4 * scale)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    # 2**-9 is the smallest positive float8 number; a scale of 0 would cause a division by zero
    return scales.clamp(2.0**-9, _LARGEST_FLOAT8).to(torch.float8_e4m3fn).view(torch.uint8)


def _fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, element: str, axis: int, block_size: int, smallest: int
) -> torch.Tensor:
    scales = _scale_of_each_number(_scales_of_blocks(scale, x, block_size), x, axis, block_size)
    return _rounded(x, scales, element, smallest)


def _fake_quantize_two_levels(x: torch.Tensor, scale: torch.Tensor, block_size: int) -> torch.Tensor:
    scales = dequantize(block_scales(x, scale, block_size), scale, FLOAT8, 0, 0)
    return _rounded(x, _scale_of_each_number(scales, x, -1, block_size), FLOAT4, 0)


def _rounded(x: torch.Tensor, scales: torch.Tensor, element: str, smallest: int) -> torch.Tensor:
    """`x` divided by `scales`, rounded to `element`, and multiplied by `scales`. The strides are those of `x`."""
    import torch

    codes = _codes(x / scales, element, smallest)
    return torch.empty_like(x).copy_(_numbers(codes, element, scales.dtype) * scales)


def _dequantized_like(values: torch.Tensor, scale: torch.Tensor, element: str, axis: int, block_size: int) -> Any:
    sizes = [*values.shape[:-1], 2 * values.shape[-1]] if element in FOUR_BITS else list(values.shape)
    return values.new_empty(sizes, dtype=scale.dtype)


def _codes(scaled: torch.Tensor, element: str, smallest: int) -> Any:
    """The numbers of `scaled`, rounded to `element`: one byte with the bits of each number (rule 1)."""
    import torch

    if element == FLOAT8:
        return scaled.clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn).view(torch.uint8)
    if element == FLOAT4:
        return _float4_codes(scaled)
    numbers = scaled.round().clamp(smallest, _LARGEST_INTEGERS[element]).to(torch.int8)
    return numbers if element == INT8 else (numbers & 15).view(torch.uint8)


def _numbers(codes: torch.Tensor, element: str, dtype: torch.dtype) -> Any:
    """The inverse of `_codes`, as numbers of `dtype`."""
    import torch

    if element == FLOAT8:
        return codes.view(torch.float8_e4m3fn).to(dtype)
    if element == FLOAT4:
        magnitudes = torch.tensor(_FLOAT4_NUMBERS, dtype=dtype, device=codes.device)[(codes & 7).long()]
        return torch.where(codes > 7, -magnitudes, magnitudes)
    return codes.to(dtype) - 16 * (codes >> 3).to(dtype) if element == INT4 else codes.to(dtype)


def _scales_of_blocks(scale: torch.Tensor, x: torch.Tensor, block_size: int) -> torch.Tensor:
    """Scales of blocks in the shape of the blocks of `x`. Model Optimizer stores them as one column."""
    return scale.reshape([*x.shape[:-1], -1]) if block_size else scale


def _scale_of_each_number(scale: torch.Tensor, x: torch.Tensor, axis: int, block_size: int) -> torch.Tensor:
    """The scale of each number of `x`, in a shape that broadcasts to the shape of `x` (rule 2)."""
    if block_size:
        return scale.repeat_interleave(block_size, -1)[..., : x.shape[-1]]
    if scale.numel() == 1:
        return scale.reshape(())
    return scale.reshape([-1 if number == axis % x.dim() else 1 for number in range(x.dim())])


def _float4_codes(x: torch.Tensor) -> Any:
    """The four bits of each number of `x`, rounded to float4e2m1."""
    import torch

    magnitudes = x.abs().contiguous()
    borders = torch.tensor(_FLOAT4_BORDERS, dtype=x.dtype, device=x.device)
    codes = torch.bucketize(magnitudes, borders)  # the number of smaller borders: a value at a border is rounded down
    codes += torch.isin(magnitudes, borders[1::2]).to(codes.dtype)
    return (codes + 8 * torch.signbit(x).to(codes.dtype)).to(torch.uint8)


def _packed(codes: torch.Tensor) -> Any:
    """Two codes of 4 bits in each byte (rule 4). Raises ValueError if the last axis has an odd size."""
    if codes.shape[-1] % 2:
        raise ValueError(f"{codes.shape[-1]} numbers of 4 bits do not fill whole bytes")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _unpacked(values: torch.Tensor) -> Any:
    import torch

    return torch.stack([values & 15, values >> 4], -1).flatten(-2)
