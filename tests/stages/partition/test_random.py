"""The partitions of a random model together compute exactly the results of the whole model."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.stages.partition.regions import module_path

#: TRTBUILD_RANDOM_MODELS=100 tests more models.
COUNT = int(os.environ.get("TRTBUILD_RANDOM_MODELS", "6"))
WIDTH = 4
DIMS = [{0: Dim("batch", min=1, max=6), 1: Dim("length", min=3, max=9)}] * 2
CASES = [[torch.rand(*size, WIDTH), torch.rand(*size, WIDTH) - 0.5] for size in ((1, 3), (2, 9), (6, 4))]

Operation = Callable[[torch.Tensor, torch.Tensor, Any, Any], torch.Tensor]


def swapped_halves(x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
    first, second = x.split(2, dim=2)
    return torch.cat([second, first], 2)


def flat(x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
    return x.reshape(batch * length, WIDTH).cumsum(0).reshape(batch, length, WIDTH)


def heads(x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
    return x.reshape(batch, length, 2, -1).transpose(1, 2).sigmoid().transpose(1, 2).reshape(batch, length, -1)


def in_place(x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
    z = x.clone()
    z[:, 1:] += y[:, 1:]
    z[:, 0].mul_(0.5)
    return z


def best(x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
    values, places = x.max(dim=2, keepdim=True)
    return y * values + places


OPERATIONS: dict[str, Operation] = {
    "relu": lambda x, y, b, n: x.relu(),
    "tanh": lambda x, y, b, n: x.tanh(),
    "exp": lambda x, y, b, n: x.clamp(-2, 2).exp(),
    "cumsum": lambda x, y, b, n: x.cumsum(1),
    "sort": lambda x, y, b, n: torch.sort(x, dim=1, stable=True).values,
    "topk": lambda x, y, b, n: y + x.topk(1, dim=2).values,
    "add": lambda x, y, b, n: x + y,
    "mul": lambda x, y, b, n: x * y.sigmoid(),
    "diamond": lambda x, y, b, n: x.tanh() * x.relu().cumsum(0) + x,
    "swapped halves": swapped_halves,
    "flat": flat,
    "heads": heads,
    "in place": in_place,
    "best": best,
    "centred": lambda x, y, b, n: x - x.mean(1, keepdim=True),
    "batch as number": lambda x, y, b, n: x * (b + 1) / n,
    "root of a size": lambda x, y, b, n: x / n**0.5,
    "arange": lambda x, y, b, n: x + torch.arange(n).float().cumsum(0)[:, None],
    "from sizes": lambda x, y, b, n: x + torch.ones(b, 1, 1).cumsum(0),
    "own sizes": lambda x, y, b, n: x.reshape(x.shape[0], -1).tanh().reshape(x.shape[0], x.shape[1], WIDTH),
    "constant": lambda x, y, b, n: x * torch.tensor([1.0, 0.5, -1.0, 2.0]),
    "shorter and longer": lambda x, y, b, n: torch.cat([x[:, 1:], y[:, :1]], 1),
}


class Block(nn.Module):
    """A few random operations. Blocks of the same kind differ only in their weights."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        rng = random.Random(kind)
        self.operations = [rng.choice(list(OPERATIONS)) for _ in range(rng.randint(1, 4))]
        self.kind = kind
        self.linear = nn.Linear(WIDTH, WIDTH) if rng.random() < 0.6 else None
        self.token = nn.Parameter(torch.rand(1, 1, WIDTH)) if rng.random() < 0.3 else None

    def forward(self, x: torch.Tensor, y: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
        if self.token is not None:
            x = x + self.token.exp().expand(batch, length, -1)
        for name in self.operations:
            x = OPERATIONS[name](x, y, batch, length)
        return self.linear(x) if self.linear is not None else x


class RandomModel(nn.Module):
    """A model that calls randomly chosen blocks. It may call a block several times or never.

    Each call reads two values: inputs of the model or results of earlier calls.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rng = random.Random(seed)
        kinds = [rng.randrange(1000) for _ in range(3)]
        self.blocks = nn.ModuleList(Block(rng.choice(kinds)) for _ in range(rng.randint(2, 4)))
        #: For each call: the number of the block, and the numbers of the two values that the block reads.
        self.plan: list[tuple[int, int, int]] = []
        for count in range(2, 2 + rng.randint(3, 6)):
            self.plan.append((rng.randrange(len(self.blocks)), rng.randrange(count), rng.randrange(count)))
        count = 2 + len(self.plan)
        self.outputs = [count - 1, *(rng.randrange(count) for _ in range(rng.randint(0, 3)))]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        batch, length = x.shape[:2]
        values = [x, y]
        for block, first, second in self.plan:
            values.append(self.blocks[block](values[first], values[second], batch, length))
        return [values[number] for number in self.outputs]


@pytest.mark.parametrize("seed", range(COUNT))
def test_partitions_of_random_models_equal_the_whole_model(seed: int, lowered: Any, fake_validator: Any) -> None:
    rng = random.Random(1000 + seed)
    module = RandomModel(seed)
    model = lowered(module, torch.rand(3, 5, WIDTH), torch.rand(3, 5, WIDTH), dims=DIMS)
    names = sorted({name for name in model.operators if name.startswith("aten.") and "sym_size" not in name})
    paths = {module_path(node) for node in model.program.graph.nodes}
    blocks = sorted({".".join(path.split(".")[:2]) for path in paths if path.startswith("blocks.")})
    for granularity in (("model",), ("blocks.*",), tuple(rng.sample(blocks, k=min(len(blocks), 2)))):
        listed, refused = (tuple(rng.sample(names, k=rng.randint(0, len(names) // 2))) for _ in range(2))
        validator = fake_validator(refused=dict.fromkeys(refused, "refused"))
        partitioned = model.partition(
            validator, granularity=granularity, torch_executed_ops=listed, min_block_size=rng.choice([1, 1, 2, 5])
        )
        partitioned.assert_valid_document(with_storage=granularity == ("model",)).assert_same_results_as_unpartitioned(
            *CASES
        )
        for entry in partitioned.partitions:
            if entry.kind == "tensorrt":
                assert not {*listed, *refused} & set(partitioned.operators(entry.name))
    for case in CASES:  # comparing the last partitioning with PyTorch suffices, because all gave equal results
        for result, expected in zip(partitioned.run(case), module(*(value.clone() for value in case)), strict=True):
            torch.testing.assert_close(result, expected)


class Tower(nn.Module):
    """Blocks of one kind, one after the other."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        x = self.first(x).contiguous()
        for block in self.blocks:
            x = block(x, y, batch, length).contiguous()
        return x


@pytest.mark.parametrize("kind", range(COUNT // 2))
def test_equal_blocks_share_one_structure(kind: int, lowered: Any) -> None:
    model = lowered(Tower(kind), torch.rand(3, 5, WIDTH), torch.rand(3, 5, WIDTH), dims=DIMS)
    partitioned = model.partition(granularity=("blocks.*",)).assert_same_results_as_unpartitioned(*CASES)
    blocks = [entry for entry in partitioned.partitions if entry.name.startswith("blocks.")]
    assert len(blocks) == 3
    assert len({(entry.graph, tuple(map(str, entry.outputs))) for entry in blocks}) == 1
