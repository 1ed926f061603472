"""If the compiler crashes, one step fails. The rest is built, the cache stays valid, and the next build is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import CommandLine, step
from tests.faults.processes import alive, descendants, kill
from tests.projects import copy_project, edit

#: Changes of the manifest. With wide layers, compiling takes so long that the test can find the running compiler.
WIDE = (("[1, 8]", "[1, 256]"), ("[4, 8]", "[4, 256]"), ("[8, 8]", "[8, 256]"))
MLP = "torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)"


def compiling_worker(ancestor: int) -> int | None:
    """The id of an engine worker that runs below process `ancestor` and has loaded TensorRT, or None."""
    for pid in descendants(ancestor):
        try:
            if b"trtbuild.driver.workers.worker\0engine\0" in Path(f"/proc/{pid}/cmdline").read_bytes() and (
                "libtensorrt" in Path(f"/proc/{pid}/maps").read_text()
            ):
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None


def test_a_compiler_that_is_ended_by_sigsegv_is_one_failed_step(command_line: CommandLine, tmp_path: Path) -> None:
    copy_project("two_models", command_line.project, *WIDE)
    edit(command_line.project / "nets.py", MLP, "*(torch.nn.Linear(256, 256) for _ in range(6))")
    build = subprocess.Popen(
        [sys.executable, "-m", "trtbuild.cli.main", "build", "--keep-going", "--json", "-j", "1"],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 240
    while (worker := compiling_worker(build.pid)) is None:
        assert time.monotonic() < deadline, "no compiler was ever seen"
        assert build.poll() is None, build.communicate()[1]
        time.sleep(0.003)
    kill([worker], signal.SIGSEGV)  # the worker has a job, because workers are started for jobs only
    out, err = build.communicate(timeout=240)
    assert build.returncode == 1, err
    assert not alive(worker)
    document = json.loads(out)
    (failed,) = [entry for entry in document["steps"] if entry["verdict"] == "failed"]
    assert failed["stage"] == "engine"
    assert failed["error"]["type"] == "WorkerDied"
    assert "was ended by SIGSEGV" in failed["error"]["text"]
    other_model = "second" if failed["model"] == "first" else "first"
    assert step(document, f"{other_model}/package")["verdict"] == "run"
    assert (command_line.project / "dist" / other_model / "index.json").exists()
    assert command_line("cache", "verify")["damage"] == []

    rebuilt = command_line("build")
    assert {entry["id"] for entry in rebuilt["steps"] if entry["verdict"] == "run"} == {
        failed["id"],
        f"{failed['model']}/package",
    }
    reference = CommandLine(command_line.project, tmp_path / "another cache")("build", "--force")
    plans = [step(built, failed["id"])["outputs"]["plan"] for built in (rebuilt, reference)]
    assert plans[0] == plans[1]
