"""How far one tensor is from another.

Rules
1. dtype and shape are equal. Bools and integers are equal.
2. NaN is equal to NaN at the same place, and so is an infinity of one sign. What is left is compared by numbers.
3. The error is max|a-b| / max|b| over the finite numbers. Where all of b is zero, a is too, or is infinitely far.
4. An empty tensor is equal to another of its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Gap:
    """The error, and in words what is wrong where there is no number for it."""

    error: float
    text: str = ""


EQUAL = Gap(0.0)


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> Gap:
    """How far `ours` is from `theirs`, which is what it should be. The error is infinite where they cannot be compared."""
    if ours.dtype != theirs.dtype:
        return _wrong(f"dtype {_name(ours.dtype)} instead of {_name(theirs.dtype)}")
    if ours.shape != theirs.shape:
        return _wrong(f"shape {list(ours.shape)} instead of {list(theirs.shape)}")
    if not theirs.numel():
        return EQUAL
    if not (theirs.is_floating_point() or theirs.is_complex()):
        different = int((ours != theirs).sum())
        return _wrong(f"{different:,} of {theirs.numel():,} values differ") if different else EQUAL
    same = (ours == theirs) | (torch.isnan(ours) & torch.isnan(theirs))
    finite = torch.isfinite(ours) & torch.isfinite(theirs)
    odd = int((~(finite | same)).sum())
    if odd:
        return _wrong(f"{odd:,} of {theirs.numel():,} values are NaN or infinite in one of the two")
    if bool(same.all()):
        return EQUAL
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours[finite].to(wide), theirs[finite].to(wide)
    largest = float(b.abs().max())
    far = float((a - b).abs().max())
    if not largest:
        return _wrong(f"up to {far:.2g} where all is zero")
    return Gap(far / largest)


def _wrong(text: str) -> Gap:
    return Gap(math.inf, text)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
