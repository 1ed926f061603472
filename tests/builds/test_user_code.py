"""If user code ends its process, one step fails. The other models are built.

If the process printed something, the error of the step names the log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine, step
from tests.faults.processes import alive, wait_until_gone

# User code ends the workers of these tests. So each worker is a new process, as for users, not a fork (`tests.warm`).
pytestmark = pytest.mark.cold_workers

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
defaults: {targets: [ada], profiles: [rows], inputs: {x: {}}}
models:
"""

MODELS = """\
import ctypes, os, pathlib, subprocess, sys, time
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()

def exits():
    print("going away", flush=True)
    os._exit(7)

def crashes():
    print("about to crash", flush=True)
    ctypes.string_at(0)

def kills_itself():
    os.kill(os.getpid(), 9)

def noisy():
    for number in range(150_000):
        print("line", number)
    print("to standard error", file=sys.stderr)
    assert sys.stdin.read() == "" and os.read(0, 10) == b""
    print("the last line", flush=True)
    os.close(1)
    return net()

def leaves_a_child():
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("child").write_text(str(child.pid))
    return net()

def forks():
    # the child has copies of all descriptors of the worker, and outlives it
    if os.fork() == 0:
        pathlib.Path("forked").write_text(str(os.getpid()))
        time.sleep(600)
    while not pathlib.Path("forked").exists():
        time.sleep(0.01)
    os._exit(5)

def changes_directory():
    os.chdir("/")
    return net()
"""

GOOD = ("net", "noisy", "leaves_a_child", "changes_directory")
BAD = ("exits", "crashes", "kills_itself", "forks")


@dataclass(frozen=True)
class Built:
    project: Path
    document: Any
    stderr: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One build of all models of MODELS with ``--keep-going``."""
    folder = tmp_path_factory.mktemp("user code")
    project = folder / "project"
    project.mkdir()
    lines = [f'  {name}: {{source: {{python: "models:{name}"}}}}\n' for name in (*BAD, *GOOD)]
    (project / "trtbuild.yaml").write_text(MANIFEST + "".join(lines))
    (project / "models.py").write_text(MODELS)
    command_line = CommandLine(project, folder / "cache")
    completed = command_line.run("build", "--keep-going", "--json", timeout_s=400)
    assert completed.returncode == 1, completed.stderr
    assert command_line("cache", "verify")["damage"] == []
    return Built(project, json.loads(completed.stdout), completed.stderr)


@pytest.mark.parametrize("model", GOOD)
def test_the_other_models_are_built(built: Built, model: str) -> None:
    assert (built.project / "dist" / model / "index.json").exists()
    verdicts = {entry["verdict"] for entry in built.document["steps"] if entry["model"] == model}
    assert verdicts <= {"run", "hit"}


@pytest.mark.parametrize("model", BAD)
def test_one_step_fails_and_all_later_steps_are_skipped(built: Built, model: str) -> None:
    verdicts = [entry["verdict"] for entry in built.document["steps"] if entry["model"] == model]
    assert verdicts == ["failed"] + ["skipped"] * (len(verdicts) - 1)
    assert not (built.project / "dist" / model).exists()


@pytest.mark.parametrize(
    ("model", "ending", "printed"),
    [
        ("exits", "exited with status 7", "going away"),
        ("crashes", "was ended by SIGSEGV", "about to crash"),
        ("kills_itself", "was ended by SIGKILL", None),
        ("forks", "exited with status 5", None),
    ],
)
def test_the_error_says_how_the_process_ended_and_names_the_log(
    built: Built, model: str, ending: str, printed: str | None
) -> None:
    error = step(built.document, f"{model}/trace")["error"]
    assert error["type"] == "WorkerDied"
    assert ending in error["text"]
    if printed is None:
        assert "log" not in error
        return
    log = f".trtbuild/logs/{model}/trace.log"
    assert error["log"] == log
    assert log in built.stderr
    assert printed in (built.project / log).read_text()


def test_a_long_log_keeps_its_beginning_and_its_end(built: Built) -> None:
    log = (built.project / ".trtbuild/logs/noisy/trace.log").read_text()
    assert log.startswith("line 0\n")
    assert "bytes are left out" in log
    assert "to standard error" in log and "the last line" in log
    assert len(log) < 2 << 20
    assert not list((built.project / ".trtbuild/logs").rglob("*.tmp"))


@pytest.mark.parametrize("name", ["child", "forked"])
def test_processes_that_user_code_starts_end_with_its_step(built: Built, name: str) -> None:
    pid = int((built.project / name).read_text())
    assert pid > 1
    wait_until_gone([pid])
    assert not alive(pid)
