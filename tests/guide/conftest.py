"""Fixtures for the examples of Torch-TensorRT's guides: the model, its compilation, and the comparison with PyTorch.

TensorRT-RTX builds real engines for Ada. PyTorch runs the package's reference program instead of the engines, because the
tests have no GPU.
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
    return tmp_path_factory.mktemp("guide-cache")


@pytest.fixture(autouse=True)
def reset_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before each test: forget compiled modules, leave the user's cache folder alone, and compute no gradients."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def options(guide_cache: Path) -> dict[str, Any]:
    """The settings of every compilation."""
    return {"target": 89, "device": "cpu", "cache_dir": str(guide_cache)}


@pytest.fixture
def compile_module(options: dict[str, Any]) -> Callable[..., Any]:
    """`trtbuild.compile` with the settings of every compilation."""

    def run(module: Any, *args: Any, **more: Any) -> Any:
        return trtbuild.compile(module, *args, **options, **more)

    return run


class ConvNet(torch.nn.Module):
    """A model of convolutions that accepts any batch size, height and width."""

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


def assert_equals_eager(
    model: Any, eager: torch.nn.Module, *args: torch.Tensor, tolerance: float = 1e-5, **kwargs: Any
) -> None:
    """Fail unless `model` and `eager` return equal results.

    A difference may be `tolerance` times the largest absolute value in the result of `eager`.
    """
    results, expected = model(*args, **kwargs), eager(*args, **kwargs)
    for result, reference in zip(pytree.tree_leaves(results), pytree.tree_leaves(expected), strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        difference = (result.double() - reference.double()).abs().max()
        assert difference <= tolerance * reference.double().abs().max()


def partitions(model: Any) -> list[str]:
    """The kinds of the partitions of a compiled module, in order."""
    (target,) = model.package.index.targets.values()
    return [partition.kind for partition in target.partitions.partitions]
