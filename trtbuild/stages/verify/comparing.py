"""How far one tensor is from another.

Rules
1. dtype and shape are equal. Bools and integers are equal.
2. NaN is equal to NaN at the same place, and so is an infinity of one sign. What is left is compared by numbers. Where
   all is NaN that says nothing of what was computed: it was not compared.
3. The error is max|a-b| / max|b| over the finite numbers. Where all of b is zero, a is too, or is infinitely far.
   Fill values are no scale: a mask's -1e9 in b would hide any error beside it. They are equal in both, of at least
   `FILL`, one or two numbers that stand at several places, and a thousand times what else there is.
4. An empty tensor is equal to another of its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: The least size of a fill value (rule 3): masks are filled with -1e4, -65504, -1e9 or the least float.
FILL = 1e4


@dataclass(frozen=True)
class Gap:
    """The error, and in words what is wrong where there is no number for it; and whether anything was compared."""

    error: float
    text: str = ""
    compared: bool = True


EQUAL, NOTHING = Gap(0.0), Gap(0.0, compared=False)


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
        return NOTHING if bool(torch.isnan(theirs).all()) else EQUAL
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours[finite].to(wide), theirs[finite].to(wide)
    largest = _scale(b, same[finite])
    far = float((a - b).abs().max())
    if not largest:
        return _wrong(f"up to {far:.2g} where all is zero")
    return Gap(far / largest)


def _scale(b: torch.Tensor, same: torch.Tensor) -> float:
    """max|b|, fill values left out; `same` says where b is equal to what it is compared with."""
    sizes = b.abs()
    filled = same & (sizes >= FILL)
    fills = (sizes if b.is_complex() else b)[filled].unique()
    if 0 < len(fills) <= 2 < int(filled.sum()):
        rest = sizes[~filled]
        if rest.numel() and 0 < float(rest.max()) * 1e3 <= float(fills.abs().min()):
            return float(rest.max())
    return float(sizes.max())


def _wrong(text: str) -> Gap:
    return Gap(math.inf, text)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
