"""Ctrl-C, SIGTERM and SIGKILL end a build and its children within seconds, and leave a valid cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.faults.processes import descendants, wait_until_gone
from tests.projects import copy_project
from trtbuild.store.local import leases

#: Name → code that never ends. During the last one, no other thread can use the interpreter.
ENDLESS = {
    "sleeps": "time.sleep(600)",
    "computes": "while True: pass",
    "holds the interpreter": "ctypes.PyDLL(None).sleep(600)",
}
#: User code that ignores SIGINT and SIGTERM, and never ends.
NET = """\
import ctypes, pathlib, signal, subprocess, time

def build():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pathlib.Path("started").write_text("yes")
    {how}
"""


@pytest.mark.parametrize(
    ("sent", "how"),
    [
        (signal.SIGINT, "sleeps"),
        (signal.SIGINT, "computes"),
        (signal.SIGTERM, "holds the interpreter"),
        (signal.SIGKILL, "holds the interpreter"),
    ],
)
def test_a_signal_ends_the_build_and_its_children(command_line: CommandLine, sent: signal.Signals, how: str) -> None:
    copy_project("mlp", command_line.project)
    (command_line.project / "net.py").write_text(NET.format(how=ENDLESS[how]))
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build"],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (command_line.project / "started").exists():
        assert build.poll() is None and time.monotonic() < deadline, "user code never ran"
        time.sleep(0.05)
    children = descendants(build.pid)
    assert children
    build.send_signal(sent)
    try:
        _, err = build.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        build.kill()  # its children end with it, so a failed test leaves no process behind
        raise
    if sent is signal.SIGKILL:
        assert build.returncode == -signal.SIGKILL
    else:
        assert build.returncode == 130
        assert "interrupted" in err
    wait_until_gone(children)
    locks_in_use = [path for path in (command_line.cache / "locks").iterdir() if not is_free(path)]
    assert locks_in_use == [], "a lock outlived the build"
    assert command_line("cache", "verify")["damage"] == []


def is_free(lock: Path) -> bool:
    """Whether no process holds the lock."""
    descriptor = leases.lock_if_abandoned(str(lock))
    if descriptor is None:
        return False
    os.close(descriptor)
    return True
