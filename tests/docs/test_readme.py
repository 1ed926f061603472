"""The commands of the README work, in their order on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CommandLine

pytestmark = pytest.mark.cold_workers  # what the README says is done as users do it

ROOT = Path(__file__).parents[2]
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


def test_the_manifest_and_the_commands_of_the_readme(command_line: CommandLine) -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (session,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    commands = [line[2:].partition("#")[0].split() for line in session.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 4
    (command_line.project / "trtbuild.yaml").write_text(manifest)
    (command_line.project / "models").mkdir()
    (command_line.project / "models" / "classifier.py").write_text(CLASSIFIER)
    (command_line.project.parent / "fresh").mkdir()
    fresh = CommandLine(command_line.project.parent / "fresh", command_line.cache)
    outputs = []
    for command in commands:
        assert command[0] == "trtbuild"
        done = (fresh if command[1] == "init" else command_line).run(*command[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    assert "trtbuild.yaml" in outputs[0]
    assert "done: " in outputs[1]
    assert "up to date: " in outputs[2]
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=command_line.project, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "torch.Size([5, 10])\n", done.stderr


def test_it_is_short_and_begins_with_what_it_is() -> None:
    assert README.count("\n") <= 130
    title, first, second = README.split("\n\n")[:3]
    assert title == "# trtbuild"
    assert first.startswith("trtbuild is a build system for TensorRT engines.")
    assert "No TensorRT-RTX engine has run on a GPU yet." in second
    assert "make build" in README and "make test" in README
