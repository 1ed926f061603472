"""A small real package: two engines with a Torch partition between them, and all that a signature may have."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import CommandLine
from tests.runtime.rigs import rig  # noqa: F401 - a fixture

MODEL = '''
from typing import NamedTuple

import torch


class Found(NamedTuple):
    values: torch.Tensor
    total: torch.Tensor


class Net(torch.nn.Module):
    """A convolution, a sort (which the manifest keeps in PyTorch), and a product with the sorted rows."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.mix = torch.nn.Linear(4, 6)
        self.register_buffer("offset", torch.linspace(-1, 1, 6))

    def forward(self, image, *, scale):
        x = torch.relu(self.convolution(image)).mean(dim=(2, 3)) * scale
        x = torch.sort(x, dim=0).values
        y = torch.tanh(self.mix(x)) + self.offset
        return {"found": Found(y, (y * 2).sum(dim=1)), "image": image, "nothing": None, "kind": "net", "list": [x]}


def build():
    torch.manual_seed(3)
    return Net().eval()


class Sorts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.linspace(-1, 1, 4))

    def forward(self, rows):
        return torch.sort(rows, dim=0).values.sort(dim=1).values, self.offset


def sorts():
    return Sorts().eval()
'''

MANIFEST = """
version: 1
targets:
  ada: {sm: 89}
  blackwell: {sm: 120}
profiles:
  small:
    image: {min: [1, 3, 8, 8], opt: [2, 3, 8, 8], max: [4, 3, 16, 16]}
    scale: {min: [1, 1], opt: [2, 1], max: [4, 1]}
  large:
    image: {min: [1, 3, 8, 8], opt: [8, 3, 32, 32], max: [16, 3, 64, 64]}
    scale: {min: [1, 1], opt: [8, 1], max: [16, 1]}
  rows:
    rows: {min: [1, 4], opt: [2, 4], max: [9, 4]}
models:
  torch_only:
    source: {python: "net_of_the_tests:sorts"}
    inputs: {rows: {}}
    profiles: [rows]
    targets: [ada]
    partition: {torch_executed_ops: [aten.sort]}
  net:
    source: {python: "net_of_the_tests:build"}
    inputs:
      image: {}
      scale: {keyword: true}
    dims:
      batch: {at: [image.0, scale.0]}
      height: {at: [image.2], multiple_of: 4}
      width: {at: [image.3]}
    profiles: [small, large]
    targets: [ada, blackwell]
    partition: {min_block_size: 1, torch_executed_ops: [aten.sort]}
    reference: true
  bare:
    source: {python: "net_of_the_tests:build"}
    inputs: {image: {}, scale: {keyword: true}}
    dims: {batch: {at: [image.0, scale.0]}, height: {at: [image.2], multiple_of: 4}}
    profiles: [small, large]
    targets: [ada]
    partition: {min_block_size: 1, torch_executed_ops: [aten.sort]}
"""


@dataclass(frozen=True)
class Built:
    """`package` has a reference program, `bare` is the same without; PyTorch computes all of `torch_only`."""

    package: Path
    bare: Path
    torch_only: Path
    source: Path

    def eager(self) -> Any:
        """The original module, from its source."""
        spec = importlib.util.spec_from_file_location("net_of_the_tests", self.source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.build()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built once per test run, by the real command line and TensorRT-RTX."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "runtime-package"
    with open(base / "runtime-package.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (project / "dist" / "net" / "index.json").exists():
            project.mkdir(exist_ok=True)
            (project / "net_of_the_tests.py").write_text(MODEL)
            (project / "trtbuild.yaml").write_text(MANIFEST)
            CommandLine(project, Path(os.environ.get("TRTBUILD_TEST_CACHE") or base / "runtime-cache"))("build")
    dist = project / "dist"
    return Built(dist / "net", dist / "bare", dist / "torch_only", project / "net_of_the_tests.py")


@pytest.fixture
def package(built: Built, tmp_path: Path) -> Path:
    """A copy of the package, to be damaged."""
    return shutil.copytree(built.package, tmp_path / "net")


Inputs = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def inputs() -> Inputs:
    """An image and a scale of some size."""

    def make(batch: int = 2, height: int = 8, width: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch * 10000 + height * 100 + width)
        return torch.randn(batch, 3, height, width, generator=generator), torch.rand(
            batch, 1, generator=generator
        ) + 0.5

    return make
