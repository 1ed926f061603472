"""Random tensors: values in a given range (`trtbuild.core.values.value_ranges`), and masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtbuild.core.values.value_ranges import ValueRange


def draw_in_range(
    dtype: torch.dtype, shape: Sequence[int], value_range: ValueRange, generator: torch.Generator
) -> torch.Tensor:
    """Draw a tensor of uniformly distributed values. `value_range` includes both ends. The ends of a range of floats are
    rounded to `dtype`."""
    low, high = value_range
    size = tuple(shape)
    if dtype.is_floating_point:
        fraction = torch.rand(size, generator=generator, dtype=torch.float64)
        # low + fraction * (high - low) could be infinite
        return ((1 - fraction) * low + fraction * high).clamp(low, high).to(dtype)
    integers = torch.empty(size, dtype=torch.int64)
    if high == torch.iinfo(torch.int64).max:  # high + 1 does not fit int64
        return integers.random_(int(low), None, generator=generator).to(dtype)
    return integers.random_(int(low), int(high) + 1, generator=generator).to(dtype)


def draw_mask(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Draw a tensor of bools. A row of the last axis with at least two elements has both values.

    So each row of an attention mask keeps at least one key, whether True keeps a key or hides it.
    """
    bools = torch.rand(tuple(shape), generator=generator, dtype=torch.float32) > 0.5
    if bools.dim() and bools.shape[-1] > 1:
        bools[..., 0], bools[..., -1] = False, True
    return bools
