"""The output `pt2`: a build writes it once and stores it in the cache, and torch.export opens it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine, ran

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x, *, scale):
        y = torch.cumsum(torch.relu(self.first(x)), 0)
        return {"y": torch.relu(self.second(y)) * scale, "n": None}

def build():
    return Net().eval()
"""

MANIFEST = """
version: 1
defaults: {reference: true}
targets: {ada: {sm: 89}, blackwell: {sm: 120}}
profiles:
  rows: {x: {min: [1, 8], opt: [4, 8], max: [16, 8]}, scale: {shape: [4]}}
models:
  net:
    source: {python: "net:build"}
    inputs: {x: {}, scale: {keyword: true}}
    dims: {rows: {at: [x.0]}}
    profiles: [rows]
    targets: [ada]
    partition: {min_block_size: 1, torch_executed_ops: [aten.cumsum]}
    outputs: {pt2: dist/net.pt2}
"""

#: A script for a new process: it opens the file after two imports, and compares the program with the module.
CHECK = """
import sys
first, second = sys.argv[2].split(",")
__import__(first), __import__(second)
import torch
exported = torch.export.load(sys.argv[1])
(bounds,) = exported.range_constraints.values()
assert (bounds.lower, bounds.upper) == (1, 16), bounds
sys.path.insert(0, sys.argv[3])
import net
model, eager = exported.module(), net.build()
for rows in (1, 4, 9, 16):
    x, scale = torch.randn(rows, 8), torch.randn(4)
    result, expected = model(x, scale=scale), eager(x, scale=scale)
    torch.testing.assert_close(result["y"], expected["y"])
    assert result["n"] is None
try:
    model(torch.randn(17, 8), scale=scale)
except Exception as error:
    print("refused:", type(error).__name__)
"""


@pytest.fixture
def project(command_line: CommandLine) -> CommandLine:
    (command_line.project / "net.py").write_text(NET)
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    return command_line


def run_check(path: Path, project: Path, imports: str) -> Any:
    """Run `CHECK` with the file `path`. `imports` are the names of two modules in the order of their imports."""
    command = [sys.executable, "-c", CHECK, str(path), imports, str(project)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_torch_opens_the_file_and_a_second_build_keeps_it(project: CommandLine) -> None:
    document = project("build")
    assert [entry["path"] for entry in document["outputs"]] == ["dist/net.pt2"]
    file = project.project / "dist/net.pt2"
    for imports in ("trtbuild,torch", "torch,trtbuild"):
        process = run_check(file, project.project, imports)
        assert process.returncode == 0, process.stderr[-3000:]
        assert "refused:" in process.stdout
    before = file.stat()
    second = project("build")
    assert ran(second) == {}
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    # a missing file is written from the cache
    content = file.read_bytes()
    file.unlink()
    assert ran(project("build", "--frozen")) == {}
    assert file.read_bytes() == content


def test_each_of_several_targets_has_a_file(project: CommandLine) -> None:
    manifest = project.project / "trtbuild.yaml"
    project("build")
    manifest.write_text(MANIFEST.replace("targets: [ada]", "targets: [ada, blackwell]"))
    project("build")
    assert sorted(path.name for path in (project.project / "dist").iterdir()) == ["net.ada.pt2", "net.blackwell.pt2"]


def test_a_frozen_build_does_not_create_the_file(project: CommandLine) -> None:
    manifest = project.project / "trtbuild.yaml"
    manifest.write_text(MANIFEST.replace("pt2: dist/net.pt2", "package: dist/net"))
    project("build")
    manifest.write_text(MANIFEST)
    document = project("build", "--frozen", expect=3)
    assert "the .pt2 file of model 'net' has not been made yet" in document["errors"][0]["text"]
    project("build")
    assert (project.project / "dist/net.pt2").is_file()


def test_a_bundle_contains_the_file(project: CommandLine, tmp_path: Path) -> None:
    project("build")
    content = (project.project / "dist/net.pt2").read_bytes()
    project("cache", "export", str(tmp_path / "all.tar"))
    elsewhere = CommandLine(project.project, tmp_path / "other-cache")
    elsewhere("cache", "import", str(tmp_path / "all.tar"))
    (project.project / "dist/net.pt2").unlink()
    assert ran(elsewhere("build", "--frozen")) == {}
    assert (project.project / "dist/net.pt2").read_bytes() == content


def test_a_collection_keeps_the_file_of_a_locked_model(project: CommandLine) -> None:
    """A frozen build can then write the file, also on a machine without torch."""
    project("build")
    content = (project.project / "dist/net.pt2").read_bytes()
    assert project("lock")["written"]
    yesterday = time.time() - 86400
    for path in project.cache.rglob("*"):
        if path.is_file():
            os.utime(path, (yesterday, yesterday))
    project("cache", "gc", "--max-size", "0B")
    (project.project / "dist/net.pt2").unlink()
    assert ran(project("build", "--frozen")) == {}
    assert (project.project / "dist/net.pt2").read_bytes() == content
