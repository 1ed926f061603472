"""Compare two tensors with a tolerance, also their NaN and infinite elements."""

from __future__ import annotations

import torch

#: The largest allowed relative difference of two tensors, by their dtype. Tensors of other dtypes must be equal.
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}

#: The difference of two tensors that have NaN at different places.
NAN_ELSEWHERE = "NaN at other places"


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float | str | None:
    """Compare two tensors. Returns None if they agree within `TOLERANCES`. Otherwise returns the largest difference,
    relative to the largest finite expected number, or a text if the difference cannot be a number."""
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} instead of {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
    if not (expected.is_floating_point() or expected.is_complex()):
        return None if torch.equal(actual, expected) else "other values"
    if not torch.equal(torch.isnan(actual), torch.isnan(expected)):
        return NAN_ELSEWHERE
    same_mask = (actual == expected) | torch.isnan(expected)
    if bool(same_mask.all()):
        return None
    if expected.dtype not in TOLERANCES:  # float8: torch cannot compute the difference
        return "other values"
    finite_mask = torch.isfinite(expected) & torch.isfinite(actual)
    if not bool((finite_mask | same_mask).all()):
        return "infinities at other places"
    wide_dtype = torch.complex128 if expected.is_complex() else torch.float64
    actual_values, expected_values = actual[finite_mask].to(wide_dtype), expected[finite_mask].to(wide_dtype)
    largest = float(expected_values.abs().max())
    largest_difference = float((actual_values - expected_values).abs().max())
    relative = largest_difference / largest if largest else float("inf")
    return None if relative <= TOLERANCES[expected.dtype] else relative
