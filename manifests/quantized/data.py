"""Calibration data."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def batches(count: int = 8) -> Iterator[dict[str, torch.Tensor]]:
    """Yield samples. Each is the inputs of one call of the model."""
    for _ in range(count):
        yield {"image": torch.randn(4, 1, 16, 16)}
