"""Copy a project on a GPU host, and run commands and background processes in the copy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

#: The time limits, in seconds, for the start of a background process, and for a command.
_START_S, _COMMAND_S = 60, 400
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Machine:
    """The project `examples`, the folder `work` for copies and logs, and the interpreter's command `python`.

    `variables` are environment variables for all processes.
    """

    examples: Path
    work: Path
    python: Sequence[str] = (sys.executable,)
    variables: Mapping[str, str] | None = None

    def copy_project(self, name: str) -> Path:
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("dist", ".trtbuild", "__pycache__")
        return Path(shutil.copytree(self.examples, folder, ignore=ignored))

    def environment(self, project: Path, variables: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
        inherited |= self.variables or {}
        path = os.pathsep.join(filter(None, [str(_ROOT), inherited.get("PYTHONPATH", "")]))
        return {**inherited, "PYTHONPATH": path, "TRTBUILD_CACHE_DIR": str(project / "cache"), **variables}

    def trtbuild(self, project: Path, name: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Any:
        """Return the JSON document of a command in `project`. Its output is kept in ``<name>.json`` and ``<name>.stderr``.

        Raises RuntimeError if the command printed no document.
        """
        command = subprocess.run(
            [*self.python, "-m", "trtbuild", *arguments, "--json"],
            cwd=project,
            env=self.environment(project, variables or {}),
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        (self.work / f"{name}.json").write_text(command.stdout)
        (self.work / f"{name}.stderr").write_text(command.stderr)
        try:
            return json.loads(command.stdout)
        except ValueError:
            raise RuntimeError(f"trtbuild {' '.join(arguments)} printed no document: {command.stderr[-800:]}") from None

    def scheduler(self, project: Path, name: str) -> Process:
        command = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        return Process(self, project, name, [*command, "--dashboard-address", "127.0.0.1:0"])

    def worker(self, project: Path, name: str, address: str) -> Process:
        """Start ``trtbuild worker`` for the scheduler at `address`. This command starts one worker for each GPU."""
        return Process(self, project, name, ["-m", "trtbuild", "worker", address])


class Process:
    """A background process. The end of the ``with`` block terminates the process."""

    def __init__(self, machine: Machine, project: Path, name: str, arguments: Sequence[str]) -> None:
        self._path = machine.work / f"{name}.log"
        self._log: IO[str] = self._path.open("w")
        self._process = subprocess.Popen(
            [*machine.python, *arguments],
            cwd=project,
            env=machine.environment(project, {}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def wait_for_scheduler(self) -> str:
        """Wait until this scheduler has started, and return its address. Raises RuntimeError as `wait_for` does."""
        return self.wait_for(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)")

    def wait_for(self, pattern: str) -> str:
        """Wait until the process's output matches `pattern`, and return the match's first group.

        Raises RuntimeError if the process ends first, or if its output does not match within `_START_S` seconds.
        """
        for _ in range(10 * _START_S):
            has_ended = self._process.poll() is not None  # asked before the read, so that no output is missed
            found = re.search(pattern, self._path.read_text())
            if found is not None:
                return found[1]
            if has_ended:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        raise RuntimeError(f"the output has no {pattern}: {self._path.read_text()[-500:]}")
