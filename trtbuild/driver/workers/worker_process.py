"""One worker process, as its parent sees it: its start, its jobs, its end, and the errors that it reports.

`worker` is the child's side of the protocol. `pool` has the rules of worker processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from trtbuild import errors
from trtbuild.driver.workers import logs
from trtbuild.driver.workers.environments import worker_environment
from trtbuild.driver.workers.forking.owner import ForkServers, client_command
from trtbuild.driver.workers.kinds import NO_IMPORTS, WorkerKind
from trtbuild.errors import ToolchainError, TrtbuildError
from trtbuild.stages.trace.user_code.leading_imports import UnfitLibraries

#: If a worker has not exited this many seconds after its input was closed, it is killed.
EXIT_TIMEOUT_S = 5.0

#: An error shows this many characters of the end of a log.
LOG_TAIL_CHARACTERS = 4000

_ROLES: Mapping[WorkerKind, str] = {
    "trace": "the process that runs the model's own code",
    "torch": "the process that converts the model",
    "engine": "the process that compiles the engine",
    "comparison": "the process that compares the engines",
    "original": "the process that times the original model",
}
_MEMORY_HINT = (
    "the system ends processes when memory runs out: run fewer steps at once (-j 1), or use a machine with more memory"
)
#: The signals of faults in native code, and the signals by which another process ends a process.
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CRASH_HINT = "native code that the model calls crashed; try it without trtbuild"
_END_HINT = "run the build again; if it ends again, try the model without trtbuild"
#: The hint for a dead worker, by its kind and the signal that ended it. 0 stands for all other causes.
_DEATH_HINTS: Mapping[tuple[WorkerKind, int], str] = {
    ("trace", signal.SIGKILL): _MEMORY_HINT,
    **{("trace", number): _CRASH_HINT for number in _CRASH_SIGNALS},
    **{("trace", number): _END_HINT for number in _END_SIGNALS},
    ("trace", 0): "the model's code called exit: return the module instead",
    ("torch", signal.SIGKILL): _MEMORY_HINT,
    ("torch", 0): "run the build again; if it dies again, please report it as a bug of trtbuild",
    ("engine", signal.SIGKILL): _MEMORY_HINT,
    ("comparison", signal.SIGKILL): "the system ends processes when memory runs out: use a machine with more memory",
    ("comparison", 0): "verify again; if it dies again, an engine or the TensorRT runtime crashes",
    ("original", signal.SIGKILL): "the system ends processes when memory runs out: time fewer things at once",
    ("original", 0): "the model's code ended its process: try the model without trtbuild",
    ("engine", 0): "run the build again; if it dies again, it is a bug of the compiler: try another version of it",
}
#: The beginning of a crash report of `faulthandler`, and one frame of its stack.
_CRASH_HEADING = "Fatal Python error: "
_STACK_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)

#: A function that receives the outputs that a worker announces, as JSON: name → output.
OnAnnounced = Callable[[Mapping[str, Any]], None]


def command(kind: WorkerKind, store_root: Path, project: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "trtbuild.driver.workers.worker", kind, str(store_root), str(project)]


class WorkerDied(ToolchainError):
    """A worker process ended without a reply."""


class Worker:
    """One child process. Not thread-safe. `gpu` is the only GPU that an engine worker sees; None: all GPUs."""

    def __init__(
        self,
        kind: WorkerKind,
        store_root: Path,
        project: Path,
        gpu: int | None = None,
        servers: ForkServers | None = None,
        imports: bytes = NO_IMPORTS,
    ) -> None:
        """Start a worker. If `servers.can_fork` accepts its environment variables, it is forked from one of `servers`.

        `imports` names the libraries that a trace worker should import before its first job (`ForkServers.connect`)."""
        self.kind = kind
        self.gpu = gpu
        self.imports = imports
        self._project = project
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="trtbuild-log-")  # noqa: SIM115
        words, environment = command(kind, store_root, project), worker_environment(kind, gpu)
        with contextlib.ExitStack() as stack:
            descriptors = []
            if servers is not None and servers.can_fork(kind, environment):
                connection = stack.enter_context(servers.connect(kind, imports))
                descriptors = [connection.fileno()]
                words = client_command(str(connection.fileno()), words)
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                cwd=project,
                pass_fds=descriptors,
                start_new_session=True,
                text=True,
            )

    def call(self, job: Mapping[str, Any], on_announced: OnAnnounced = lambda outputs: None) -> dict[str, Any]:
        """Send a job, and return the worker's reply. Before the reply, call `on_announced` with announced outputs.

        Raises the error that the worker reports, or WorkerDied. Raises UnfitLibraries if the worker has imported other
        libraries than the job needs."""
        start = os.fstat(self._log.fileno()).st_size
        try:
            if self._process.stdin is None or self._process.stdout is None:
                raise AssertionError("workers have pipes")
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._death_error(start) from None
        reply = self._read_reply(start)
        while "announced" in reply:
            on_announced(reply["announced"])
            reply = self._read_reply(start)
        reply["log"] = self._log_since(start)
        if reply.get("unfit"):
            raise UnfitLibraries
        if not reply["ok"]:
            error = error_from_json(reply["error"], reply["log"])
            error.worker_log = reply["log"]
            raise error
        return reply

    def _read_reply(self, start: int) -> dict[str, Any]:
        """Read a line from the worker. `start` is the size of the log before the job. Raises WorkerDied."""
        try:
            line = self._process.stdout.readline() if self._process.stdout is not None else ""
        except OSError:
            line = ""
        if not line.endswith("\n"):
            raise self._death_error(start)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def end(self) -> None:
        """End an idle worker by closing its input. Then kill it if it still runs, and the processes that it has started."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.002)
        self.kill()
        self._close()

    def kill(self) -> None:
        """Kill the worker and the processes that it has started."""
        if self._process.returncode is None:  # not reaped, so the process id still belongs to this worker
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()
        self._process.wait()

    def _has_ended(self) -> bool:
        """Whether the worker has ended. If possible, it is not reaped, so that no other process gets its id."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _death_error(self, start: int) -> WorkerDied:
        if hasattr(os, "waitid"):
            # ChildProcessError: another thread has reaped the worker (`kill`), so its id may belong to another process
            with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
                os.killpg(self._process.pid, signal.SIGKILL)  # the processes that it started
        code = self._process.wait()
        cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        whole_log = self._log_since(start)
        output, _, stack = whole_log.partition(_CRASH_HEADING)
        log = output[-LOG_TAIL_CHARACTERS:].strip()
        text = f"{_ROLES[self.kind]} {cause}" + (f"; the end of its log:\n{log}" if log else "")
        error = WorkerDied(text, hint=_DEATH_HINTS.get((self.kind, -code), _DEATH_HINTS[self.kind, 0]))
        error.worker_log = whole_log
        error.file, error.line = self._project_frame(stack)
        return error

    def _project_frame(self, stack: str) -> tuple[str | None, int | None]:
        """Return file and line of the innermost frame in the project. `stack` is the text of `faulthandler`."""
        stack_of_crash = stack.rpartition("Current thread")[2]  # the stacks of other threads come first
        for file, line in _STACK_FRAME.findall(stack_of_crash):
            path = Path(file)
            if path.is_relative_to(self._project) and "site-packages" not in path.parts:
                return path.relative_to(self._project).as_posix(), int(line)
        return None, None

    def _log_since(self, start: int) -> str:
        return logs.read(self._log.fileno(), start)


def error_from_json(fields: Mapping[str, Any], log: str) -> TrtbuildError:
    """Return the error that a worker reported. It has the type of the worker's error if this is a TrtbuildError.

    Any other exception becomes an InternalError. `fields` come from `worker`."""
    error_type = getattr(errors, str(fields.get("type")), None)
    text = str(fields["text"])
    has_one_problem = error_type not in (
        errors.ManifestErrors,
        errors.ConfigurationErrors,
    )  # workers do not raise these
    is_known = isinstance(error_type, type) and issubclass(error_type, TrtbuildError) and has_one_problem
    if error_type is not None and is_known and "trace" not in fields:  # an unexpected exception has a traceback
        error: TrtbuildError = error_type(text, hint=fields.get("hint"))
        error.file, error.line = fields.get("file"), fields.get("line")  # not all constructors take a place
        if isinstance(error, errors.SourceError):
            error.code, error.field = str(fields.get("code", "source")), fields.get("field")
        if isinstance(error, ToolchainError):
            error.log = tuple(log.splitlines())
            error.nodes = tuple(map(str, fields.get("nodes", ())))
        return error
    return errors.InternalError(f"{text}\n{fields.get('trace') or log[-LOG_TAIL_CHARACTERS:]}".rstrip())
