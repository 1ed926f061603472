"""A small PyTorch module, and a cache for the modules that these tests compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild


@pytest.fixture(scope="session")
def program_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests, so that each engine is built once."""
    return tmp_path_factory.mktemp("program-cache")


@pytest.fixture(autouse=True)
def separate_cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture
def compile_module(program_cache: Path) -> Callable[..., Any]:
    """`trtbuild.compile` for Ada. The compiled modules run on the CPU."""

    def compile_for_ada(module: Any, *args: Any, **options: Any) -> Any:
        options = {"target": 89, "device": "cpu", "cache_dir": program_cache, **options}
        return trtbuild.compile(module, *args, **options)

    return compile_for_ada


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return {"y": y if scale is None else y * scale}


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return Net().eval()
