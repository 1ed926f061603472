"""Packages for tests, built by the real command line. Their models are in `image_model` in tests/projects."""

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
from tests.projects import copy_project
from tests.runtime.rigs import rig  # noqa: F401 - a fixture


@dataclass(frozen=True)
class Built:
    """The paths of the packages, and of the source of `package` and `bare`.

    `package` has a reference program, so it also runs on a CPU. `bare` has the same model without a reference program.
    PyTorch computes all of `torch_only`.
    """

    package: Path
    bare: Path
    torch_only: Path
    source: Path

    def eager(self) -> Any:
        """Return the PyTorch module of `package` and `bare`."""
        spec = importlib.util.spec_from_file_location("net_of_the_tests", self.source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.build()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the packages once per test run, with TensorRT-RTX."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "runtime-package"
    with open(base / "runtime-package.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (project / "dist" / "net" / "index.json").exists():
            copy_project("image_model", project)
            CommandLine(project, Path(os.environ.get("TRTBUILD_TEST_CACHE") or base / "runtime-cache"))("build")
    dist = project / "dist"
    return Built(dist / "net", dist / "bare", dist / "torch_only", project / "net_of_the_tests.py")


@pytest.fixture
def package(built: Built, tmp_path: Path) -> Path:
    """Copy the package, so that a test may damage the copy."""
    return shutil.copytree(built.package, tmp_path / "net")


Inputs = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def inputs() -> Inputs:
    """A function that returns images of the given size, and a scale for each."""

    def make(batch: int = 2, height: int = 8, width: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch * 10000 + height * 100 + width)
        image = torch.randn(batch, 3, height, width, generator=generator)
        return image, torch.rand(batch, 1, generator=generator) + 0.5

    return make
