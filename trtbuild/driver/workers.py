"""The parent side of worker processes: starting, talking to, ending and reusing them.

Rules
1. A trace worker does one job: user code must not meet what an earlier model left behind. Others are reused.
2. Trace workers inherit the user's environment, with CUDA hidden and the hash seed fixed. Engine workers start with a
   cleared environment plus `ENGINE_ENVIRONMENT`, which is in the engine's key.
3. A worker that dies is one failed job, with the end of its log; the next job gets a new one.
4. Workers run in sessions of their own, so Ctrl-C reaches the driver alone, which then ends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

from trtbuild import errors
from trtbuild.errors import ToolchainError, TrtbuildError

WorkerKind = Literal["trace", "torch", "engine"]

#: All that an engine worker finds in its environment. It is a part of every engine's key.
ENGINE_ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}

#: How much of a dead worker's log an error shows, in bytes.
LOG_TAIL = 4000


class WorkerDied(ToolchainError):
    """A worker process ended without an answer."""


class Worker:
    """One child process. Not thread-safe: one job at a time."""

    def __init__(self, kind: WorkerKind, store_root: Path, project: Path) -> None:
        self.kind = kind
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="trtbuild-log-")  # noqa: SIM115
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        command = [sys.executable, *safe_path, "-m", "trtbuild.driver.worker", kind, str(store_root), str(project)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(kind),
            cwd=project,
            start_new_session=True,
            text=True,
        )

    def call(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's reply. Raises the error that it met, or WorkerDied."""
        start = os.fstat(self._log.fileno()).st_size
        try:
            if self._process.stdin is None or self._process.stdout is None:
                raise AssertionError("workers have pipes")
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (BrokenPipeError, OSError):
            line = ""
        if not line.endswith("\n"):
            raise self._died(start)
        reply: dict[str, Any] = json.loads(line)
        reply["log"] = self._log_since(start)
        if not reply["ok"]:
            raise rebuild(reply["error"], reply["log"])
        return reply

    def end(self) -> None:
        """Let it finish by itself: it has nothing to do, so the end of its stream ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """End it and all that it started, now."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _died(self, start: int) -> WorkerDied:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        log = self._log_since(start)[-LOG_TAIL:].strip()
        text = f"the {self.kind} worker {how}" + (f"; the end of its log:\n{log}" if log else "")
        return WorkerDied(
            text, hint="run the build again; if it dies again, this is a bug of the compiler or the model"
        )

    def _log_since(self, start: int) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace")


class WorkerPool:
    """Idle workers by kind. Thread-safe."""

    def __init__(self, store_root: Path, project: Path) -> None:
        self._store_root = store_root
        self._project = project
        self._idle: dict[WorkerKind, list[Worker]] = {"trace": [], "torch": [], "engine": []}
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def call(self, kind: WorkerKind, job: Mapping[str, Any]) -> dict[str, Any]:
        """Do one job in a worker of `kind`."""
        worker = self._take(kind)
        try:
            reply = worker.call(job)
        except TrtbuildError:
            self._give_back(worker, reusable=kind != "trace" and worker.alive)
            raise
        except BaseException:
            self._give_back(worker, reusable=False)
            raise
        self._give_back(worker, reusable=kind != "trace")
        return reply

    def close(self, *, kill: bool = False) -> None:
        """End all workers; with `kill` the busy ones too."""
        with self._lock:
            self._closed = True
            idle = [worker for workers in self._idle.values() for worker in workers]
            busy = list(self._busy)
            self._idle = {"trace": [], "torch": [], "engine": []}
        for worker in busy if kill else []:
            worker.kill()
        for worker in idle:
            worker.kill()
            worker.end()

    def _take(self, kind: WorkerKind) -> Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the build was interrupted")
            worker = self._idle[kind].pop() if self._idle[kind] else None
            if worker is None or not worker.alive:
                worker = Worker(kind, self._store_root, self._project)
            self._busy.add(worker)
            return worker

    def _give_back(self, worker: Worker, *, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(worker)
            if reusable and not self._closed:
                self._idle[worker.kind].append(worker)
                return
        worker.end()


def rebuild(described: Mapping[str, Any], log: str) -> TrtbuildError:
    """The error that a worker described, as the same type here."""
    kind = getattr(errors, str(described.get("type")), None)
    text = str(described["text"])
    if isinstance(kind, type) and issubclass(kind, TrtbuildError) and kind is not errors.ManifestErrors:
        error: TrtbuildError = kind(text, hint=described.get("hint"))
        error.file, error.line = described.get("file"), described.get("line")  # not every kind is made with a place
        if isinstance(error, errors.SourceError):
            error.code = str(described.get("code", "source"))
        if isinstance(error, ToolchainError):
            error.log = tuple(log.splitlines())
        return error
    return errors.InternalError(f"{text}\n{described.get('trace') or log[-LOG_TAIL:]}".rstrip())


def _environment(kind: WorkerKind) -> dict[str, str]:
    if kind == "engine":
        return dict(ENGINE_ENVIRONMENT)
    environment = dict(os.environ)
    environment.update({"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"})
    return environment
