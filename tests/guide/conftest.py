"""Torch-TensorRT's guide to dynamic shapes, row by row: a model, how it is compiled, and how it is compared with eager.

Engines are built by the real TensorRT-RTX for Ada; results come from the reference path, because this machine has no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import trtbuild

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="session")
def guide_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all rows."""
    return tmp_path_factory.mktemp("guide-cache")


@pytest.fixture(autouse=True)
def clean(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def options(guide_cache: Path) -> dict[str, Any]:
    """The settings with which every row compiles."""
    return {"target": 89, "device": "cpu", "cache_dir": str(guide_cache)}


@pytest.fixture
def compiled(options: dict[str, Any]) -> Callable[..., Any]:
    def run(module: Any, *args: Any, **more: Any) -> Any:
        return trtbuild.compile(module, *args, **options, **more)

    return run


class ConvNet(torch.nn.Module):
    """The guide's model: convolutions that take any batch, height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = x + torch.relu(self.conv2(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def conv_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return ConvNet().eval()


def check(model: Any, eager: torch.nn.Module, *args: torch.Tensor, tolerance: float = 1e-5, **kwargs: Any) -> None:
    """The model gives what eager gives: max|a−b| / max|b| ≤ tolerance."""
    found, wanted = model(*args, **kwargs), eager(*args, **kwargs)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        difference = (one.double() - other.double()).abs().max()
        assert difference <= tolerance * other.double().abs().max()


def partitions(model: Any) -> list[str]:
    """The kinds of a compiled module's partitions, in order."""
    (target,) = model.package.index.targets.values()
    return [partition.kind for partition in target.partitions.partitions]
