"""Measure the difference of two tensors, also of their NaN and infinite elements.

Rules
1. dtype and shape must be equal. Bools and integers must be equal.
2. NaN equals NaN at the same place, and an infinity equals an infinity of the same sign. All other values are compared as
   numbers. A tensor that is NaN everywhere proves nothing, so it counts as not compared.
3. The error is max|a-b| / max|b| over the finite numbers. If all of b is zero, the error is 0 or infinite. Fill values
   do not count in max|b|, because a mask's -1e9 would hide every error. A fill value is equal in both tensors. Its
   absolute value is at least `SMALLEST_FILL_VALUE`, and a thousand times larger than the other values. At most two
   numbers that occur several times are fill values.
4. Empty tensors of one shape are equal.
5. Values that rounding decides (`rounding`) are left out. If no value is left, nothing was compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

#: The smallest absolute value of a fill value (rule 3): masks are filled with -1e4, -65504, -1e9 or the lowest float.
SMALLEST_FILL_VALUE = 1e4


@dataclass(frozen=True)
class Deviation:
    """The result of a comparison. `text` describes a difference that has no size, such as another dtype. `compared` is
    False if nothing was compared. `undecided` is the number of values that rounding decides; they were left out.
    `allowed_error` is an error that is right although it exceeds the tolerance (rule 3 of `rounding`)."""

    error: float
    text: str = ""
    compared: bool = True
    undecided: int = 0
    allowed_error: float = field(default=0.0, compare=False)


EQUAL, NOT_COMPARED = Deviation(0.0), Deviation(0.0, compared=False)


def deviation(ours: torch.Tensor, theirs: torch.Tensor, undecided: torch.Tensor | None = None) -> Deviation:
    """Compare `ours` with `theirs`, the reference. The error is infinite if dtypes, shapes or exact values differ.

    `undecided` is True at the values that are left out. It has the shape of `theirs`.
    """
    left_out_count = int(undecided.sum()) if undecided is not None else 0
    if undecided is None or not left_out_count:
        return _compare(ours, theirs)
    if left_out_count == undecided.numel():  # the shapes may differ, too
        return Deviation(0.0, compared=False, undecided=left_out_count)
    if ours.shape == theirs.shape:
        ours, theirs = ours[~undecided], theirs[~undecided]
    return replace(_compare(ours, theirs), undecided=left_out_count)


def exact_deviation(ours: torch.Tensor, theirs: torch.Tensor) -> Deviation:
    """Compare two numbers that may not differ at all."""
    if ours.dtype == theirs.dtype and torch.equal(ours, theirs):
        return EQUAL
    return _infinite_deviation(f"{ours.tolist()} instead of {theirs.tolist()}")


def _compare(ours: torch.Tensor, theirs: torch.Tensor) -> Deviation:
    if ours.dtype != theirs.dtype:
        return _infinite_deviation(f"dtype {_name(ours.dtype)} instead of {_name(theirs.dtype)}")
    if ours.shape != theirs.shape:
        return _infinite_deviation(f"shape {list(ours.shape)} instead of {list(theirs.shape)}")
    if not theirs.numel():
        return EQUAL
    if not (theirs.is_floating_point() or theirs.is_complex()):
        different = int((ours != theirs).sum())
        return _infinite_deviation(f"{different:,} of {theirs.numel():,} values differ") if different else EQUAL
    same = (ours == theirs) | (torch.isnan(ours) & torch.isnan(theirs))
    finite = torch.isfinite(ours) & torch.isfinite(theirs)
    not_finite = int((~(finite | same)).sum())
    if not_finite:
        return _infinite_deviation(f"{not_finite:,} of {theirs.numel():,} values are NaN or infinite in one of the two")
    if bool(same.all()):
        return NOT_COMPARED if bool(torch.isnan(theirs).all()) else EQUAL
    wide_dtype = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours[finite].to(wide_dtype), theirs[finite].to(wide_dtype)
    largest = largest_magnitude(b, same[finite])
    largest_difference = float((a - b).abs().max())
    if not largest:
        return _infinite_deviation(f"up to {largest_difference:.2g} where all values should be zero")
    return Deviation(largest_difference / largest)


def largest_magnitude(b: torch.Tensor, same: torch.Tensor) -> float:
    """max|b| without fill values. `same` is True where both tensors are equal."""
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
