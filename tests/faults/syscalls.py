"""Uses strace to record the system calls of a child, and to inject a signal, an error or a false result at the n-th call.

Rules
1. The child is forked from this process, which has imported all modules. The child waits at a pipe until strace is
   attached. So the recorded calls are those of the operation, without the start of an interpreter.
2. strace counts calls by name and by thread. So a call is identified by its name and number. An operation whose calls are
   counted runs in one thread (`one_thread`).
3. An injected signal comes before the call is executed. A kill before a call also tests the state after the previous
   writing call, because the state does not change between them.
4. All traced calls count as writing, except opens for reading, and the `write` of the child's report to its pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.programs import program
from trtbuild.errors import TrtbuildError

#: Calls that change files or locks, or wait until changes are on the disk. A `?` marks a call that some architectures lack.
_TRACED = (
    "?open,?openat,?creat,?write,?pwrite64,?writev,?pwritev,?fsync,?fdatasync,?sync_file_range,?rename,?renameat,"
    "?renameat2,?link,?linkat,?symlink,?symlinkat,?unlink,?unlinkat,?rmdir,?mkdir,?mkdirat,?truncate,?ftruncate,?fallocate,"
    "?utime,?utimes,?utimensat,?futimesat,?chmod,?fchmod,?fchmodat,?chown,?fchown,?fchownat,?copy_file_range,?sendfile,"
    "?flock,?setxattr,?fsetxattr"
)

_REPORT = 190  # the descriptor of the pipe in the child
_CALL = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\((.*)$")
_OPENS = ("open", "openat", "creat")
_PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True)
class Call:
    """The `number`-th call of `name` in an operation, counted from 1."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.number}: {self.text}"


@dataclass(frozen=True)
class Outcome:
    """The wait status of a child, its writing calls in order, its report (None without one), and strace's log."""

    status: int
    calls: tuple[Call, ...]
    report: Any
    log: str

    @property
    def killed(self) -> bool:
        """Whether strace killed the child."""
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == 9 and "+++ killed by SIGKILL" in self.log

    @property
    def tampered(self) -> bool:
        """Whether strace replaced the result of a call."""
        return "(INJECTED)" in self.log


def traced(run: Callable[[Path], object], folder: Path, *injections: str) -> Outcome:
    """Run ``run(folder)`` in a child, with injections such as ``rename:signal=KILL:when=3``.

    The child reports ``{"result": …}``, or ``{"error": …, "text", "hint"}`` for an exception.
    """
    strace = program("strace")
    gate_read, gate_write = os.pipe()
    report_read, report_write = os.pipe()
    log = folder.parent / f"{folder.name}.strace"
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        os.close(report_read)
        _child(run, folder, gate_read, report_write)
    os.close(gate_read)
    os.close(report_write)
    command = [strace, "-f", "-y", "-s", "0", "-o", str(log), "-e", f"trace={_TRACED}"]
    for injection in injections:
        command += ["-e", f"inject={injection}"]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _await_attachment(tracer)
        os.write(gate_write, b"g")
        report = _read_all(report_read)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(gate_write)
        os.close(report_read)
        _, status = os.waitpid(pid, 0)
        tracer.communicate(timeout=30)
    text = log.read_text()
    log.unlink()
    return Outcome(status, tuple(_calls(text)), json.loads(report) if report else None, text)


def _child(run: Callable[[Path], object], folder: Path, gate: int, report: int) -> None:
    code = 70  # EX_SOFTWARE: the child ends without a report
    try:
        logging.disable()
        os.dup2(report, _REPORT)
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, -1, 0, 0, 0)  # needed if Yama restricts ptrace to ancestors
        if os.read(gate, 1) == b"g":
            os.write(_REPORT, json.dumps(outcome_of(run, folder)).encode())
            code = 0
    finally:
        os._exit(code)


def outcome_of(run: Callable[[Path], object], folder: Path) -> dict[str, Any]:
    """The result or the exception of ``run(folder)``, as JSON."""
    try:
        return {"result": run(folder)}
    except TrtbuildError as error:
        return {"error": type(error).__name__, "text": error.text, "hint": error.hint}
    except Exception as error:
        return {"error": type(error).__name__, "text": repr(error), "hint": None}


def _await_attachment(tracer: subprocess.Popen[bytes]) -> None:
    """Wait until strace is attached to the child, so that no call is missed."""
    assert tracer.stderr is not None
    output, deadline = b"", time.monotonic() + 30
    while b"attached" not in output:
        ready, _, _ = select.select([tracer.stderr], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(tracer.stderr.fileno(), 4096) if ready else b""
        if not more:
            raise RuntimeError(f"strace cannot trace here: {output.decode(errors='replace')}")
        output += more


def _read_all(descriptor: int) -> bytes:
    received, deadline = b"", time.monotonic() + 120
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, "the child hangs"
        more = os.read(descriptor, 65536)
        if not more:
            return received
        received += more


def _calls(log: str) -> Iterator[Call]:
    counts: Counter[str] = Counter()
    for line in log.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        name, rest = match.groups()
        counts[name] += 1
        reads = name in _OPENS and not re.search("O_WRONLY|O_RDWR|O_CREAT", rest)
        if not reads and not (name == "write" and rest.startswith(f"{_REPORT}<")):
            yield Call(name, counts[name], rest)


class _SequentialExecutor:
    """An executor that runs each task in the calling thread, before `submit` or `map` returns."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _SequentialExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        return iter([call(*values) for values in zip(*arguments, strict=False)])

    def shutdown(self, *_: object, **__: object) -> None:
        pass


@contextlib.contextmanager
def one_thread(*modules: str) -> Iterator[None]:
    """Replace the thread pools of these modules by the calling thread (rule 2)."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch(f"{module}.ThreadPoolExecutor", _SequentialExecutor))
        yield
