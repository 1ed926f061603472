"""The difference of two tensors, and how large it may be."""

from __future__ import annotations

import torch

TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}

#: The difference of two tensors that have NaN at different places.
NAN_ELSEWHERE = "NaN at other places"


def difference(got: torch.Tensor, want: torch.Tensor) -> float | str | None:
    """The largest difference relative to the largest number; a text if it cannot be computed; None within `TOLERANCE`."""
    if got.dtype != want.dtype:
        return f"dtype {got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if not (want.is_floating_point() or want.is_complex()):
        return None if torch.equal(got, want) else "other values"
    if torch.equal(torch.isnan(got), torch.isnan(want)) is False:
        return NAN_ELSEWHERE
    same = (got == want) | torch.isnan(want)
    if bool(same.all()):
        return None
    finite = torch.isfinite(want) & torch.isfinite(got)
    if not bool((finite | same).all()):
        return "infinities at other places"
    wide_dtype = torch.complex128 if want.is_complex() else torch.float64
    a, b = got[finite].to(wide_dtype), want[finite].to(wide_dtype)
    largest = float(b.abs().max())
    largest_difference = float((a - b).abs().max())
    relative = largest_difference / largest if largest else float("inf")
    return None if relative <= TOLERANCE.get(want.dtype, 0.0) else relative
