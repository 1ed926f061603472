"""Measure the difference between two tensors: an actual tensor a, and an expected tensor b.

Rules
1. The dtypes and shapes must be equal. Bools and integers must be equal.
2. NaN equals NaN, and an infinity equals an infinity of the same sign. Every other NaN or infinity is an infinite error. If
   a and b are NaN everywhere, this proves nothing, so the result is `NOT_COMPARED`.
3. The error is max|a-b| / max|b| over the finite numbers. If all of b is zero, the error is 0 or infinite. Fill values do
   not count in max|b|, because a mask's -1e9 would hide every error. A fill value is equal in a and b. Its absolute value
   is at least `SMALLEST_FILL_VALUE`, and at least a thousand times that of every other value. (The others are not all 0.)
   If a tensor has more than two different values of this kind, or has them at fewer than three places, they count.
4. Empty tensors of the same shape are equal.
5. Values that rounding decides (`rounding`) are left out. If no value is left, the result says that nothing was compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

#: The smallest absolute value of a fill value (rule 3): masks are filled with -1e4, -65504, -1e9 or the lowest float.
SMALLEST_FILL_VALUE = 1e4


@dataclass(frozen=True)
class Deviation:
    """The result of a comparison."""

    #: The error of rule 3. It is infinite if `text` is not empty.
    error: float
    #: Describes a difference that is not a number, such as another dtype.
    text: str = ""
    #: False if nothing was compared.
    compared: bool = True
    #: The number of values that rounding decides. They were left out.
    left_out_count: int = 0
    #: An error that is accepted although it exceeds the tolerance (`rounding`, rule 3).
    allowed_error: float = field(default=0.0, compare=False)


EQUAL, NOT_COMPARED = Deviation(0.0), Deviation(0.0, compared=False)


def deviation(actual: torch.Tensor, expected: torch.Tensor, left_out: torch.Tensor | None = None) -> Deviation:
    """Compare two tensors. `left_out` is True at the values that are left out, and has the shape of `expected`."""
    left_out_count = int(left_out.sum()) if left_out is not None else 0
    if left_out is None or not left_out_count:
        return _compare(actual, expected)
    if left_out_count == left_out.numel():  # even if the shapes differ
        return Deviation(0.0, compared=False, left_out_count=left_out_count)
    if actual.shape == expected.shape:
        actual, expected = actual[~left_out], expected[~left_out]
    return replace(_compare(actual, expected), left_out_count=left_out_count)


def exact_deviation(actual: torch.Tensor, expected: torch.Tensor) -> Deviation:
    """Compare two numbers that must be exactly equal."""
    if actual.dtype == expected.dtype and torch.equal(actual, expected):
        return EQUAL
    return _infinite_deviation(f"{actual.tolist()} instead of {expected.tolist()}")


def _compare(actual: torch.Tensor, expected: torch.Tensor) -> Deviation:
    if actual.dtype != expected.dtype:
        return _infinite_deviation(f"dtype {_name(actual.dtype)} instead of {_name(expected.dtype)}")
    if actual.shape != expected.shape:
        return _infinite_deviation(f"shape {list(actual.shape)} instead of {list(expected.shape)}")
    if not expected.numel():
        return EQUAL
    if not (expected.is_floating_point() or expected.is_complex()):
        different = int((actual != expected).sum())
        return _infinite_deviation(f"{different:,} of {expected.numel():,} values differ") if different else EQUAL
    same = (actual == expected) | (torch.isnan(actual) & torch.isnan(expected))
    finite = torch.isfinite(actual) & torch.isfinite(expected)
    not_finite = int((~(finite | same)).sum())
    if not_finite:
        return _infinite_deviation(
            f"{not_finite:,} of {expected.numel():,} values are NaN or infinite in one of the two"
        )
    if bool(same.all()):
        return NOT_COMPARED if bool(torch.isnan(expected).all()) else EQUAL
    wide_dtype = torch.complex128 if expected.is_complex() else torch.float64
    a, b = actual[finite].to(wide_dtype), expected[finite].to(wide_dtype)
    largest = largest_magnitude(b, same[finite])
    largest_difference = float((a - b).abs().max())
    if not largest:
        return _infinite_deviation(f"up to {largest_difference:.2g} where all values should be zero")
    return Deviation(largest_difference / largest)


def largest_magnitude(b: torch.Tensor, same: torch.Tensor) -> float:
    """Return max|b| without fill values. `same` is True where both tensors are equal."""
    magnitudes = b.abs()
    is_fill = same & (magnitudes >= SMALLEST_FILL_VALUE)
    fills = (magnitudes if b.is_complex() else b)[is_fill].unique()
    if 0 < len(fills) <= 2 < int(is_fill.sum()):
        rest = magnitudes[~is_fill]
        if rest.numel() and 0 < float(rest.max()) * 1e3 <= float(fills.abs().min()):
            return float(rest.max())
    return float(magnitudes.max())


def _infinite_deviation(text: str) -> Deviation:
    return Deviation(math.inf, text)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
