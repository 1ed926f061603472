"""Copies (forks) of the watcher. Each runs one function, so no build sees the state of an earlier build."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtbuild import null_build
from trtbuild.driver.workers.forking.server import kill_group
from trtbuild.driver.workers.worker import end_with_parent


@dataclass
class Copy:
    """A running copy. Its `pidfd` becomes readable when the copy ends.

    `report_descriptor` belongs to a file in memory, to which the copy writes JSON. It is not a pipe, because a copy with a
    long report would have to wait for a reader. `client` is the connection to a client, or None.
    """

    pid: int
    pidfd: int
    report_descriptor: int
    client: socket.socket | None = None

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)  # the signal of Ctrl-C

    def kill(self) -> None:
        kill_group(self.pid)

    def finish(self) -> tuple[int, Any]:
        """Wait for the end. Returns the exit code (negative after a signal) and the report (None if it is not JSON)."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        report = os.pread(self.report_descriptor, os.fstat(self.report_descriptor).st_size, 0)
        os.close(self.report_descriptor)
        with contextlib.suppress(ValueError):
            return os.waitstatus_to_exitcode(status), json.loads(report)
        return os.waitstatus_to_exitcode(status), None


def start(work: Callable[[int], int], *, client: socket.socket | None = None) -> Copy:
    """Run `work` in a copy. `work` gets the descriptor for its report, and returns the exit code of the copy."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, report = os.getpid(), os.memfd_create("report")
    pid = os.fork()
    if pid:
        return Copy(pid, os.pidfd_open(pid), report, client)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a watcher in the background may ignore SIGINT
        null_build.STARTED_NS = time.time_ns()  # the watcher has just checked that the code of trtbuild is unchanged
        os.setsid()  # Ctrl-C reaches the watcher, which interrupts the copy
        end_with_parent()
        if os.getppid() == parent:
            code = work(report)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def use_client_streams() -> None:
    """Create Python's standard streams again, after their descriptors were replaced."""
    encoding, errors = sys.stdout.encoding, sys.stdout.errors  # client and watcher have the same encoding
    buffering = 1 if os.isatty(1) else -1
    sys.stdin = os.fdopen(0, closefd=False, encoding=encoding)
    sys.stdout = os.fdopen(1, "w", closefd=False, buffering=buffering, encoding=encoding, errors=errors)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, encoding=encoding, errors="backslashreplace")
