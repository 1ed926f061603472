"""What the README tells people to type works, in the order in which it stands there."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"`((?:core|driver|stages|store|toolchain|manifest|cli)/[\w/]*(?:\.py)?)`", text):
        assert (ROOT / "trtbuild" / name).exists(), name
