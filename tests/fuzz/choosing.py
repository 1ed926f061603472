"""Helpers that write the statements of a random module: named values, random choices, and blocks of layers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Value:
    """A named tensor of the module, with its value at opt. In a string, it appears as its name."""

    name: str
    tensor: torch.Tensor

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return self.name

    @property
    def rank(self) -> int:
        return self.tensor.dim()

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def kind(self) -> str:
        if self.tensor.dtype is torch.bool:
            return "bool"
        return "float" if self.tensor.is_floating_point() else "int"


class NoSuitableValue(Exception):
    """The module has no value that the statement can use, or the statement has no usable result."""


class Chooser:
    """Chooses values, axes and numbers for a statement. `parts` are the submodules of the random module."""

    def __init__(self, rng: random.Random, values: Sequence[Value], parts: dict[str, nn.Module]) -> None:
        self.rng = rng
        self.values = values
        self.parts = parts

    def value(self, kind: str = "any", min_rank: int = 0, max_rank: int = 9) -> Value:
        """A random value of `kind` with a rank in the range. Later values are chosen more often. Raises NoSuitableValue."""
        suitable = [v for v in self.values if kind in ("any", v.kind) and min_rank <= v.rank <= max_rank]
        if not suitable:
            raise NoSuitableValue
        return self.rng.choices(suitable, range(1, len(suitable) + 1))[0]

    def float_value(self, min_rank: int = 0, max_rank: int = 9) -> Value:
        return self.value("float", min_rank, max_rank)

    def like(self, example: Value) -> Value:
        """A value with the dtype of `example`, and with the same shape at opt."""
        return self.rng.choice(
            [v for v in self.values if v.shape == example.shape and v.tensor.dtype == example.tensor.dtype]
        )

    def axis(self, value: Value) -> int:
        """An axis of a value, counted from the front or (negative) from the end."""
        if not value.rank:
            raise NoSuitableValue
        return self.rng.randrange(value.rank) - self.rng.choice([0, value.rank])

    def axes(self, value: Value) -> str:
        count = self.rng.randint(1, max(1, value.rank))
        return str(sorted(self.rng.sample(range(value.rank), min(count, value.rank))))

    def order(self, value: Value) -> str:
        """All axes of a value in a random order, for ``permute``."""
        return ", ".join(map(str, self.rng.sample(range(value.rank), value.rank)))

    def size(self, value: Value, axis: int) -> str:
        """The size of an axis as text: usually an expression, sometimes the number at opt, even if the axis is dynamic."""
        return f"{value}.shape[{axis}]" if self.rng.random() < 0.85 else str(value.shape[axis])

    def sizes(self, value: Value) -> list[str]:
        return [self.size(value, axis) for axis in range(value.rank)]

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def add_part(self, module: nn.Module) -> str:
        """Add a submodule. Returns the expression for it."""
        name = f"m{len(self.parts)}"
        self.parts[name] = module
        return f"self.{name}"

    def width(self, value: Value) -> int:
        return int(value.shape[-1])


class Attention(nn.Module):
    """Self-attention over the last axis but one."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A normalization, an activation and a convolution, as in vision models."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(groups, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(nn.functional.silu(self.norm(x)))
