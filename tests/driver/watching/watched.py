"""A project with one small model, a real process of ``trtbuild watch``, and real builds that can use this watcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.processes import descendants, wait_until_gone

SCRIPT = Path(sys.executable).parent / "trtbuild"

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 4], opt: [2, 4], max: [8, 4]}}}
models:
  net: {source: {python: "net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""
#: Each trace appends a line to the file ``seen``: its pid, whether it sees three changes by earlier traces, and the value
#: of ``TRTBUILD_MARK``.
MODEL = """\
import json, os, sys
import torch

def build():
    leftovers = [hasattr(json, "left"), "LEFT" in os.environ, hasattr(torch, "patched"), os.environ.get("TRTBUILD_MARK")]
    with open(os.environ["PWD_OF_TEST"] + "/seen", "a") as file:
        file.write(json.dumps([os.getpid(), leftovers]) + "\\n")
    json.left, os.environ["LEFT"], torch.patched = True, "1", True
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
"""
WAIT_S = 120.0


class Watch:
    """A project, its watcher, and builds that can use the watcher."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.runtime = folder / "run"
        self.project.mkdir()
        self.runtime.mkdir(mode=0o700)
        (self.project / "trtbuild.yaml").write_text(MANIFEST)
        (self.project / "net.py").write_text(MODEL)
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "PWD_OF_TEST": str(folder)}
        self.environment.pop("TRTBUILD_CACHE_DIR", None)
        self.seen = folder / "seen"
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *models: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [SCRIPT, "watch", *models], cwd=self.project, env=self.environment, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def build(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``trtbuild build`` with these arguments and environment variables."""
        return subprocess.run(
            [SCRIPT, "build", *arguments],
            cwd=self.project,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` is true. The watcher must not end earlier."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def builds(self) -> int:
        """The number of the watcher's builds that have ended without an error."""
        return self.log.read_text().count("done: ") + self.log.read_text().count("up to date: ")

    def edit(self, activation: str) -> None:
        """Give the model another activation, such as ``Tanh``."""
        (self.project / "net.py").write_text(MODEL.replace("ReLU", activation))

    def end(self) -> int:
        """End the watcher and all its processes. Return its exit status."""
        assert self.process is not None
        pids = descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        wait_until_gone(pids)
        return status
