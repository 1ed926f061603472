"""Ctrl-C, SIGTERM and SIGKILL end a build and its children within seconds, and leave a valid cache."""

from __future__ import annotations

import json
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
from trtbuild.store.local import locks

#: A program that runs ``trtbuild plan``. It sends itself SIGINT when it begins to import the module `argv[1]`.
START = """\
import os, signal, sys
from trtbuild import __main__

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            print("importing", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv[1]
sys.meta_path.insert(0, Interrupter())
sys.argv = ["trtbuild", "plan"]
__main__.main()
"""

#: Name → code that never ends. While the last code runs, no other thread of the process can run Python code.
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
    ("sent_signal", "how"),
    [
        (signal.SIGINT, "sleeps"),
        (signal.SIGINT, "computes"),
        (signal.SIGTERM, "holds the interpreter"),
        (signal.SIGKILL, "holds the interpreter"),
    ],
)
def test_a_signal_ends_the_build_and_its_children(
    command_line: CommandLine, sent_signal: signal.Signals, how: str
) -> None:
    copy_project("mlp", command_line.project)
    (command_line.project / "net.py").write_text(NET.format(how=ENDLESS[how]))
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build", "--json"],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (command_line.project / "started").exists():
        assert build.poll() is None and time.monotonic() < deadline, "user code never ran"
        time.sleep(0.05)
    children = descendants(build.pid)
    assert children
    build.send_signal(sent_signal)
    try:
        out, err = build.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        build.kill()  # its children end with it, so a failed test leaves no process behind
        raise
    if sent_signal is signal.SIGKILL:
        assert build.returncode == -signal.SIGKILL
    else:
        assert build.returncode == 130
        assert "interrupted" in err
        document = json.loads(out)
        assert document["schema"] == "trtbuild.build/1" and not document["ok"]
        assert [error["type"] for error in document["errors"]] == ["InterruptError"]
    wait_until_gone(children)
    locks_in_use = [path for path in (command_line.cache / "locks").iterdir() if not is_free(path)]
    assert locks_in_use == [], "a lock outlived the build"
    assert command_line("cache", "verify")["damage"] == []


@pytest.mark.parametrize("module", ["trtbuild.cli.main", "click", "trtbuild.cli.terminal"])
def test_a_signal_during_the_imports_prints_no_traceback(command_line: CommandLine, module: str) -> None:
    copy_project("mlp", command_line.project)
    result = subprocess.run(
        [sys.executable, "-c", START, module],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "importing\n", "the signal was not sent"
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


def is_free(lock: Path) -> bool:
    """Whether no process holds the lock."""
    descriptor = locks.lock_if_abandoned(str(lock))
    if descriptor is None:
        return False
    os.close(descriptor)
    return True
