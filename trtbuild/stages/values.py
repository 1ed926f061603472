"""Random tensors whose values lie in a range that somebody gave (`trtbuild.core.values.value_ranges`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtbuild.core.values.value_ranges import ValueRange


def in_range(dtype: torch.dtype, shape: Sequence[int], values: ValueRange, generator: torch.Generator) -> torch.Tensor:
    """A tensor of values from the first to the last of `values`, both included, each as likely as any other. The ends of
    a floating range are as exact as the type holds them."""
    low, high = values
    size = tuple(shape)
    if dtype.is_floating_point:
        share = torch.rand(size, generator=generator, dtype=torch.float64)
        # not low + share * (high - low), which may be infinite
        return ((1 - share) * low + share * high).clamp(low, high).to(dtype)
    whole = torch.empty(size, dtype=torch.int64)
    if high == torch.iinfo(torch.int64).max:  # the largest value that is not drawn is no int64 then
        return whole.random_(int(low), None, generator=generator).to(dtype)
    return whole.random_(int(low), int(high) + 1, generator=generator).to(dtype)
