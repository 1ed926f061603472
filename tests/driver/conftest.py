"""A small project, built once: what commands that look at packages, and run them, are tried on."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine

MANIFEST = """\
version: 1
defaults: {targets: [ada], reference: true}
targets: {ada: {sm: 89}, blackwell: {sm: 120}}
profiles:
  rows: {x: {min: [1, 8], opt: [4, 8], max: [16, 8]}, scale: {shape: []}}
  single: {x: {shape: [1, 8]}, scale: {shape: []}}
models:
  ranker:
    source: {python: "nets:build"}
    inputs: {x: {}, scale: {keyword: true}}
    dims: {batch: {at: [x.0]}}
    profiles: [rows, single]
    targets: [ada, blackwell]
    outputs: {package: dist/ranker, triton: dist/repository}
"""

NETS = """\
import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.score = nn.Linear(16, 4)

    def forward(self, x, *, scale):
        ranked = self.score(self.hidden(x).relu()) * scale
        return {"scores": ranked, "best": ranked.argmax(dim=1), "total": ranked.sum()}


def build():
    return Ranker().eval()
"""


@dataclass(frozen=True)
class Small:
    """The project, its cache, and the document of the build."""

    project: Path
    cache: Path
    document: Any

    @property
    def command_line(self) -> CommandLine:
        return CommandLine(self.project, self.cache)

    @property
    def package(self) -> Path:
        return self.project / "dist" / "ranker"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Built once per test run. Nothing may be changed in it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project, cache = base / "small", base / "small-cache"
    with open(base / "small.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not project.exists():
            project.mkdir()
            (project / "trtbuild.yaml").write_text(MANIFEST)
            (project / "nets.py").write_text(NETS)
        document = CommandLine(project, cache)("build")
    return Small(project, cache, document)
