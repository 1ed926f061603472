"""A child process that tries cases. If it dies in native code or hangs, the fuzzer continues.

It is forked from a process that has loaded torch and the samples of its operators (`op_db`), so it starts quickly. The
parent process runs no cases.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.trying import Outcome

#: A child is replaced after this number of cases, because libraries may keep memory of each case.
MOST_CASES = 100

#: The outcome of a child that died or did not answer has at most this many lines of the child's output.
_MOST_LINES = 25

#: The limit of the address space of a child, in bytes.
MEMORY_BYTES = 24 << 30


class Child:
    """A process that calls `try_seed` with one seed after another."""

    def __init__(self, try_seed: Callable[[int], Outcome]) -> None:
        self.connection, child_end = multiprocessing.Pipe()
        self._output = tempfile.NamedTemporaryFile(prefix="trtbuild-fuzz-", suffix=".log")  # noqa: SIM115
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self.connection, child_end, try_seed, self._output.name), daemon=True
        )
        self._process.start()
        child_end.close()
        self.seed: int | None = None
        self.case_count = 0
        self._started_s = 0.0

    def start_case(self, seed: int) -> None:
        """Start the case of a seed in the child. The outcome of the previous case must have been read."""
        self.seed = seed
        self.case_count += 1
        self._started_s = time.monotonic()
        self.connection.send(seed)

    def answer(self) -> Outcome:
        """Wait for the outcome of the current case. The death of the child is an outcome, too."""
        assert self.seed is not None
        seed, self.seed = self.seed, None
        try:
            return self.connection.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return Outcome(seed, "crashed", f"the process died: {name}", self._last_lines())

    def is_overdue(self, limit_s: float) -> bool:
        return self.seed is not None and time.monotonic() - self._started_s > limit_s

    def stop(self, limit_s: float) -> Outcome:
        """End a child that does not answer, and return the outcome of its case."""
        assert self.seed is not None
        seed, self.seed = self.seed, None
        if self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGABRT)  # faulthandler writes the stack
        self._process.join(10)
        lines = self._last_lines()
        self.close()
        return Outcome(seed, "crashed", f"no answer within {limit_s:.0f} s", lines)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()
        self._output.close()

    def _last_lines(self) -> tuple[str, ...]:
        """The stack that faulthandler wrote, or otherwise the last lines of the output."""
        lines = Path(self._output.name).read_text(errors="replace").splitlines()
        fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
        if fatal:
            return tuple(lines[max(0, fatal[-1] - 2) :][:_MOST_LINES])  # a library may print a message before it aborts
        return tuple(lines[-_MOST_LINES:])


def _serve(parent_end: Connection, connection: Connection, try_seed: Callable[[int], Outcome], output: str) -> None:
    """The program of the child. Its standard output and error go to the file `output`."""
    parent_end.close()  # if the child had this end open, `recv` would not raise EOFError when the parent exits
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    faulthandler.enable(2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        connection.send(try_seed(seed))
        gc.freeze()  # a trace runs the garbage collector, which skips the objects that exist now
