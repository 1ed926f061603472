"""Two builds of one project at the same time: each step runs in one of them, and the other uses the result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.faults.processes import descendants, wait_until_gone
from tests.projects import ADA_AND_AMPERE, copy_project, edit
from tests.warm.servers import servers


def start_build(project: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *servers.python_arguments("trtbuild.cli.main", os.environ), "build", "--json"],
        cwd=project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_builds_at_once_do_each_step_once(command_line: CommandLine, tmp_path: Path) -> None:
    copy_project("mlp", command_line.project, *ADA_AND_AMPERE)
    copy = tmp_path / "other checkout"
    shutil.copytree(command_line.project, copy)
    builds = [start_build(project, command_line.cache) for project in (command_line.project, copy)]
    documents = []
    for build in builds:
        out, err = build.communicate(timeout=240)
        assert build.returncode == 0, err
        documents.append(json.loads(out))
    runs = Counter(step["key"] for document in documents for step in document["steps"] if step["verdict"] == "run")
    assert set(runs.values()) == {1}
    for document in documents:
        assert {step["key"] for step in document["steps"]} == set(runs), "both builds needed all steps"
    plans = [project / "dist" / "net" / "engines" / "ada" / "model.plan" for project in (command_line.project, copy)]
    assert plans[0].read_bytes() == plans[1].read_bytes()


#: User code that waits as long as its checkout has a file `block`. The trace depends on the existence of this file.
BLOCKING = """\
import pathlib, time

while pathlib.Path("block").exists():
    pathlib.Path("started").write_text("yes")
    time.sleep(0.05)
"""


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process waits for a lock: its line in ``/proc/locks`` has an arrow (proc(5))."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(len(fields) > 5 and fields[1:3] == ["->", "FLOCK"] and fields[5] == str(pid) for fields in lines)


@pytest.fixture
def first_and_second(command_line: CommandLine, tmp_path: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Two builds in two checkouts: the first one holds the lock of the trace, the second one waits for this lock."""
    copy_project("mlp", command_line.project, *ADA_AND_AMPERE)
    edit(command_line.project / "net.py", "import torch\n", f"import torch\n{BLOCKING}")
    copy = tmp_path / "other"
    shutil.copytree(command_line.project, copy)
    (command_line.project / "block").write_text("")
    deadline = time.monotonic() + 120
    first = start_build(command_line.project, command_line.cache)
    while not (command_line.project / "started").exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    second = start_build(copy, command_line.cache)
    while not waits_for_a_lock(second.pid):
        assert second.poll() is None and time.monotonic() < deadline, "the second build does not wait for the first"
        time.sleep(0.02)
    return first, second


needs_locks = pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="/proc/locks, which lists waiting processes, does not exist"
)


@needs_locks
def test_a_waiting_build_continues_when_the_other_build_is_killed(
    command_line: CommandLine, first_and_second: tuple[subprocess.Popen[str], subprocess.Popen[str]]
) -> None:
    first, second = first_and_second
    children = descendants(first.pid)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=20)
    assert first.returncode == -signal.SIGKILL
    wait_until_gone(children)
    out, err = second.communicate(timeout=240)
    assert second.returncode == 0, err
    document = json.loads(out)
    assert {step["verdict"] for step in document["steps"]} == {"run"}
    assert command_line("cache", "verify")["damage"] == []


@needs_locks
def test_a_waiting_build_can_be_interrupted(
    command_line: CommandLine, first_and_second: tuple[subprocess.Popen[str], subprocess.Popen[str]]
) -> None:
    first, second = first_and_second
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=30)
    assert second.returncode == 130, err
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=30)
    assert first.returncode == 130, err
    assert command_line("cache", "verify")["damage"] == []
