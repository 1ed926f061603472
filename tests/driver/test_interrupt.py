"""Ctrl-C and SIGTERM end a build soon, with all its children, and leave a cache that verifies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CommandLine

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
models:
  net: {source: {python: "net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""

#: User code that says that it has started, and then never ends.
ENDLESS = """\
import pathlib, time

def build():
    pathlib.Path("started").write_text("yes")
    time.sleep(600)
"""


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_build_and_its_children(command_line: CommandLine, sent: signal.Signals) -> None:
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    (command_line.project / "net.py").write_text(ENDLESS)
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build"],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (command_line.project / "started").exists():
        assert time.monotonic() < deadline, "user code never ran"
        time.sleep(0.05)
    children = children_of(build.pid)
    assert children
    build.send_signal(sent)
    _, err = build.communicate(timeout=20)
    if sent is signal.SIGKILL:
        assert build.returncode == -signal.SIGKILL
    else:
        assert build.returncode == 130
        assert "interrupted" in err
    deadline = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline, "a child outlived its parent"
        time.sleep(0.05)
    assert command_line("cache", "verify")["damage"] == []
