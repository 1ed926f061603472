"""Models whose calls depend on earlier calls. They need only PyTorch."""

from __future__ import annotations

import torch
from torch import nn


class Meter(nn.Module):
    """Normalizes signals with running estimates of their mean and variance."""

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        self.count += signal.shape[0]
        share = signal.shape[0] / self.count
        self.mean = self.mean + share * (signal.mean(0) - self.mean)
        self.variance = self.variance + share * ((signal - self.mean).square().mean(0) - self.variance)
        return (signal - self.mean) / (self.variance + 1e-5).sqrt()


class Recurrent(nn.Module):
    """A recurrent cell that reads one step of a sequence in each call, and keeps its hidden state."""

    def __init__(self, features: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)
        self.head = nn.Linear(hidden, 4)
        self.register_buffer("hidden", torch.zeros(1, hidden), persistent=False)

    def forward(self, step: torch.Tensor) -> torch.Tensor:
        self.hidden = self.cell(step, self.hidden)
        return self.head(self.hidden)


def meter() -> nn.Module:
    return Meter().eval()


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent().eval()
