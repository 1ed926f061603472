"""Models of PyTorch itself: recurrent networks and the stock transformer encoder."""

from __future__ import annotations

import torch
from torch import nn

from .sizes import by_size, prepare_module


class Tagger(nn.Module):  # type: ignore[misc]
    """A recurrent network with a linear layer. It returns scores for each position, and the last state."""

    def __init__(self, network: nn.GRU | nn.LSTM, width: int) -> None:
        super().__init__()
        self.network = network
        self.linear = nn.Linear(width, 20)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, state = self.network(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.linear(outputs), last


def gru() -> nn.Module:
    """A bidirectional GRU of two layers of 512 channels."""
    torch.manual_seed(0)
    width = by_size(512, 64)
    return prepare_module(Tagger(nn.GRU(128, width, num_layers=2, batch_first=True, bidirectional=True), 2 * width))


def lstm() -> nn.Module:
    """An LSTM of two layers of 512 channels."""
    torch.manual_seed(0)
    width = by_size(512, 64)
    return prepare_module(Tagger(nn.LSTM(128, width, num_layers=2, batch_first=True), width))


def transformer_encoder() -> nn.Module:
    """`nn.TransformerEncoder` of six layers, as in "Attention Is All You Need"."""
    torch.manual_seed(0)
    layers, feed_forward = by_size((6, 2048), (1, 256))
    layer = nn.TransformerEncoderLayer(512, 8, feed_forward, batch_first=True)
    # In evaluation mode, nested tensors would set padded positions to zero. The exported program does not do this.
    return prepare_module(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))
