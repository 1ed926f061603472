"""Two builds of one project at once: each step is done by one of them, and the other uses its result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conftest import CommandLine

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}, ampere: {sm: 86}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
models:
  net:
    source: {python: "net:build"}
    inputs: {x: {}}
    profiles: [rows]
    targets: [ada, ampere]
"""

NET = """\
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
"""


def test_two_builds_at_once_do_each_step_once(command_line: CommandLine, tmp_path: Path) -> None:
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    (command_line.project / "net.py").write_text(NET)
    other = tmp_path / "other checkout"
    shutil.copytree(command_line.project, other)
    environment = {**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)}
    builds = [
        subprocess.Popen(
            [sys.executable, "-m", "trtbuild.cli.main", "build", "--json"],
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for project in (command_line.project, other)
    ]
    documents = []
    for build in builds:
        out, err = build.communicate(timeout=240)
        assert build.returncode == 0, err
        documents.append(json.loads(out))
    ran = Counter(step["key"] for document in documents for step in document["steps"] if step["verdict"] == "run")
    assert set(ran.values()) == {1}
    # both wanted everything
    assert (
        {step["key"] for step in documents[0]["steps"]} == {step["key"] for step in documents[1]["steps"]} == set(ran)
    )
    plans = [project / "dist" / "net" / "engines" / "ada" / "model.plan" for project in (command_line.project, other)]
    assert plans[0].read_bytes() == plans[1].read_bytes()
