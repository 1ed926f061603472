"""A decoder (Llama's architecture, https://arxiv.org/abs/2302.13971) that reads one token in each call.

Tokens and positions are int32, because TensorRT 8.6 does not compute int64. The model writes its cache with a mask. So the
whole model is one engine.
"""

from __future__ import annotations

import torch
from torch import nn


class Norm(nn.Module):  # type: ignore[misc]
    """Root mean square normalization."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention over the cache, then a gated perceptron. Each has a residual connection."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, hidden: int, most_tokens: int) -> None:
        super().__init__()
        self.heads = hidden // 64
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * hidden, hidden, bias=False)
        self.register_buffer("keys", torch.zeros(1, self.heads, most_tokens, 64), persistent=False)
        self.register_buffer("values", torch.zeros(1, self.heads, most_tokens, 64), persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        is_here: torch.Tensor,
        is_future: torch.Tensor,
    ) -> torch.Tensor:
        """Return the new hidden state of a token.

        `rotation` has the cosines and sines of the token's position. `is_here` selects this position in the cache, and
        `is_future` selects the later positions.
        """
        normal = self.norm1(x)
        query, key, value = (
            layer(normal).reshape(1, 1, self.heads, 64).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        self.keys = torch.where(is_here, _rotate(key, rotation), self.keys)
        self.values = torch.where(is_here, value, self.values)
        scores = _rotate(query, rotation) @ self.keys.transpose(2, 3) / 8
        weights = scores.masked_fill(is_future, -1e9).softmax(-1)
        x = x + self.out((weights @ self.values).transpose(1, 2).reshape(1, 1, -1))
        normal = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary position embedding (https://arxiv.org/abs/2104.09864)."""
    first, second = x[..., :32], x[..., 32:]
    cosine, sine = rotation
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class TokenDecoder(nn.Module):  # type: ignore[misc]
    """A token, int32 of shape (1, 1) → logits of the next token, (1, vocabulary)."""

    length: torch.Tensor
    places: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self, layers: int, hidden: int, most_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8 * hidden, hidden)
        self.layers = nn.ModuleList(Layer(hidden, most_tokens) for _ in range(layers))
        self.norm, self.head = Norm(hidden), nn.Linear(hidden, 8 * hidden, bias=False)
        self.register_buffer("places", torch.arange(most_tokens, dtype=torch.int32), persistent=False)
        self.register_buffer("frequencies", 10_000 ** (-torch.arange(32) / 32), persistent=False)
        self.register_buffer("length", torch.zeros(1, dtype=torch.int32), persistent=False)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        angles = self.length.to(self.frequencies.dtype)[:, None, None, None] * self.frequencies
        rotation = angles.cos(), angles.sin()
        is_here = (self.places == self.length)[None, None, :, None]
        is_future = (self.places > self.length)[None, None, None]
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, rotation, is_here, is_future)
        self.length = self.length + 1
        return self.head(self.norm(x))[:, 0]


def build(layers: int, hidden: int) -> nn.Module:
    """Return the model, for at most 128 tokens."""
    torch.manual_seed(0)
    model = TokenDecoder(layers, hidden, 128)
    for module in model.modules():
        # With the usual deviation of 0.02, the model would return only a few different tokens.
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0, 2.4 / hidden**0.5)
    return model.eval()
