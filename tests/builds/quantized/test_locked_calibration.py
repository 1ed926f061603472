"""A machine with another version of Model Optimizer, or without it, uses the calibration that the lock names."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import CommandLine, ran, step
from tests.driver.cache.test_locking import install_versions


@pytest.fixture
def locked(quantized_examples: CommandLine, tmp_path: Path) -> CommandLine:
    """A copy of the examples and of their cache, with a lock of one model."""
    shutil.copytree(quantized_examples.project, tmp_path / "project")
    shutil.copytree(quantized_examples.cache, tmp_path / "cache")
    command = replace(quantized_examples, project=tmp_path / "project", cache=tmp_path / "cache")
    command("lock", "int8")
    return command


def test_the_locked_calibration_is_used_with_other_versions(locked: CommandLine, tmp_path: Path) -> None:
    newer = install_versions(tmp_path / "site", **{"torch": "99.0", "nvidia-modelopt": "99.0"})
    document = locked("build", "int8", "--frozen", environment=newer)
    assert ran(document) == {}
    assert "trtbuild.lock names it" in step(document, "int8/calibrate")["reason"]["text"]
    assert locked("lock", "int8", "--check", environment=newer)["ok"]


def test_a_machine_without_torch_and_modelopt_builds_with_the_lock(locked: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'modelopt', 'tensorrt', 'tensorrt_rtx', 'onnx', 'numpy'):\n"
        "            raise ImportError(f'{name} must not be imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    assert ran(locked("build", "int8", "--frozen", environment={"PYTHONPATH": str(tmp_path)})) == {}
