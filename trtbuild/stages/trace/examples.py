"""Example values of the inputs, to trace a model and to compare the traced program with the model (`proof`).

The values depend only on the seed, and on the dtypes, shapes and ranges of the inputs. Values of an input with a range are
in this range. Other integers are 0 or 1, because these are valid in masks, and as ids of every embedding with at least two
rows. Bools are random, but a row of the last axis with at least two elements has both values. Other floats and complex
numbers have a normal distribution.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from trtbuild.core.model.spec import Input
from trtbuild.stages.values import draw_in_range, draw_mask

SEED = 0


def seed_everything() -> None:
    """Seed torch, numpy and random, so that a model with random initial weights is the same in every process."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(SEED)


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype with the name that a manifest uses (``float32``). Raises ValueError if there is no such dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype in a manifest: ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def example_tensors(inputs: Sequence[Input], shapes: Sequence[Sequence[int]], seed: int = SEED) -> list[torch.Tensor]:
    """Make one tensor for each input, in order."""
    generator = torch.Generator().manual_seed(seed)
    return [_example_tensor(entry, shape, generator) for entry, shape in zip(inputs, shapes, strict=True)]


def call_arguments(inputs: Sequence[Input], values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a call that passes `values` to `inputs`."""
    pairs = list(zip(inputs, values, strict=True))
    args = tuple(value for entry, value in pairs if not entry.keyword)
    return args, {entry.name: value for entry, value in pairs if entry.keyword}


def _example_tensor(entry: Input, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    dtype, size = dtype_of(entry.dtype), tuple(shape)
    if entry.range is not None:
        return draw_in_range(dtype, size, entry.range, generator)
    if dtype is torch.bool:
        return draw_mask(size, generator)
    if dtype.is_complex:
        components = [torch.randn(size, generator=generator, dtype=torch.float32) for _ in range(2)]
        return torch.complex(*components).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2, size, generator=generator).to(dtype)
