"""The quantized examples, built once in a test run."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine

EXAMPLES = Path(__file__).parents[3] / "manifests" / "quantized"


@pytest.fixture(scope="session")
def quantized_examples(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A copy of manifests/quantized, built once for all processes of a test run. Tests must not change its files."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "quantized-examples"
    command = CommandLine(project, base / "quantized-cache")
    with open(base / "quantized-examples.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not project.exists():
            shutil.copytree(EXAMPLES, project, ignore=shutil.ignore_patterns("__pycache__", "dist", ".trtbuild"))
        command("build", timeout_s=600)
    return command


@pytest.fixture(scope="module")
def example_nets() -> Any:
    specification = importlib.util.spec_from_file_location("quantized_nets", EXAMPLES / "nets.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
