"""BERT's encoder (Devlin et al. 2018, https://arxiv.org/abs/1810.04805) with random weights, for int32 tokens.

With int32 tokens the whole model is one engine in TensorRT 8.6, which takes no int64 inputs. The vocabulary has 2,048
tokens instead of 30,522, because looking up a row takes the same time in a smaller table. There are no token types.
"""

from __future__ import annotations

import torch
from torch import nn

#: The number of tokens in the vocabulary, and the largest number of tokens in a text.
VOCABULARY_SIZE, MAX_LENGTH = 2048, 128


class Layer(nn.Module):  # type: ignore[misc]
    """Self-attention, then a feed-forward network. Each ends with a residual connection and a layer normalization."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps=1e-12), nn.LayerNorm(hidden, eps=1e-12)
        self.heads = hidden // 64

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        query, key, value = (
            layer(x).reshape(batch, length, self.heads, 64).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(2, 3) / 8 + mask, dim=-1)
        attended = (weights @ value).transpose(1, 2).reshape(batch, length, hidden)
        x = self.norm1(x + self.out(attended))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):  # type: ignore[misc]
    """Token ids and a mask, both int32 of shape (batch, length) → hidden states, (batch, length, hidden)."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY_SIZE, hidden), nn.Embedding(MAX_LENGTH, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(layers))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]])
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x


def build(layers: int, hidden: int) -> nn.Module:
    """Return the model. As in BERT, its weights have a normal distribution with a standard deviation of 0.02.

    BERT's biases start at 0. Here, linear layers have random biases, so that an engine without a bias has a wrong result.
    """
    torch.manual_seed(0)
    model = Bert(layers, hidden)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0, 0.02)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, 0, 0.02)
    return model.eval()
