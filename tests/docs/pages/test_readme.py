"""The README's manifest, commands and Python program work, in their order on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CommandLine

#: Each process loads torch itself, as it does for users. Other tests fork their processes from one that has loaded torch.
pytestmark = pytest.mark.cold_workers

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()

CLASSIFIER = """\
import torch
from torch import nn

def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    ).eval()
"""


def test_the_manifest_and_the_commands_of_the_readme_work(command_line: CommandLine) -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (session,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    commands = [line[2:].partition("#")[0].split() for line in session.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 4
    (command_line.project / "trtbuild.yaml").write_text(manifest)
    (command_line.project / "models").mkdir()
    (command_line.project / "models" / "classifier.py").write_text(CLASSIFIER)
    (command_line.project.parent / "empty").mkdir()
    empty_project = CommandLine(command_line.project.parent / "empty", command_line.cache)
    outputs = []
    for command in commands:
        assert command[0] == "trtbuild"
        process = (empty_project if command[1] == "init" else command_line).run(*command[1:])
        assert process.returncode == 0, process.stdout + process.stderr
        outputs.append(process.stdout)
    assert "trtbuild.yaml" in outputs[0]
    assert "done: " in outputs[1]
    assert "up to date: " in outputs[2]
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=command_line.project, capture_output=True, text=True, timeout=240
    )
    assert process.stdout == "torch.Size([5, 10])\n", process.stderr


def test_the_readme_is_short_and_begins_with_a_definition() -> None:
    assert README.count("\n") <= 130
    title, first, second = README.split("\n\n")[:3]
    assert title == "# trtbuild"
    assert first.startswith("trtbuild is a build system for TensorRT engines.")
    assert "No TensorRT-RTX engine has run on a GPU yet." in second
    assert "make build" in README and "make test" in README
