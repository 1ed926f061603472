"""Operators from outside PyTorch."""

from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("libnegated.so")


@torch.library.custom_op("boxes::halves", mutates_args=())
def halves(x: torch.Tensor, rows: int, factor: float) -> torch.Tensor:
    """The first rows of each image."""
    return x[:, :, :rows].flip(1) * factor


@halves.register_fake
def _(x, rows, factor):
    return x.new_empty(x.shape[0], x.shape[1], rows, x.shape[3])


@torch.library.custom_op("boxes::positive", mutates_args=())
def positive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that begin with a positive number, and their indices."""
    rows = (x[:, 0] > 0).nonzero().reshape(-1)
    return x[rows], rows


@positive.register_fake
def _(x):
    count = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(count, x.shape[1]), x.new_empty(count, dtype=torch.int64)


@torch.library.custom_op("boxes::on_gpu", mutates_args=(), device_types="cuda")
def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """An operator for GPUs only."""
    return x * 2


on_gpu.register_fake(torch.empty_like)


@torch.library.custom_op("boxes::late", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    """Its fake implementation is wrong for 3 images, a size that no profile has as its min, opt or max."""
    return x[:1].clone() if len(x) == 3 else x.clone()


late.register_fake(torch.empty_like)

if LIBRARY.exists():
    torch.ops.load_library(LIBRARY)
    torch.library.register_fake("boxes::negated", torch.empty_like)
