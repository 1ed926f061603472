"""Choose the size of the models: the published size, or a small one with the same inputs but fewer layers or channels."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")

#: The environment variable that chooses the size: ``small``, or anything else for the published size.
SIZE_VARIABLE = "ZOO_SIZE"


def is_published_size() -> bool:
    """Return whether the environment variable chooses the published size."""
    return os.environ.get(SIZE_VARIABLE) != "small"


def by_size(published: T, small: T) -> T:
    """Return the value for the chosen size."""
    return published if is_published_size() else small


def prepare_module(module: nn.Module) -> nn.Module:
    """Return `module` in evaluation mode. Seeded random numbers are added to its vectors, and to weights that are all zero.

    Vectors are biases, layer scales, and the weights and running statistics of normalization layers. Their usual initial
    values (zero, one or 1e-6) would hide errors in their use.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.parameters():
            if tensor.squeeze().dim() <= 1 or not tensor.any():
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
        for name, tensor in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                tensor.add_(0.2 * torch.rand(tensor.shape, generator=generator))
    return module.eval()
