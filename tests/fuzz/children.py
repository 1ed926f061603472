"""A child process that tries cases: it may die in native code, or never answer, and the fuzzing goes on.

It is forked from a process that has loaded torch and `op_db` and run nothing, so that a new one costs little.
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

#: A child that has tried so many cases is replaced: whatever a library keeps of a case ends with it.
CASES = 100

#: How many lines are kept of what a child that died has printed.
_LINES = 25

#: What a case may need, beyond all that is loaded.
MEMORY_BYTES = 24 << 30


class Child:
    """A process that answers seeds by `try_seed`, in the order in which they are given."""

    def __init__(self, try_seed: Callable[[int], Outcome]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._printed = tempfile.NamedTemporaryFile(prefix="trtbuild-fuzz-", suffix=".log")  # noqa: SIM115
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self.connection, theirs, try_seed, self._printed.name), daemon=True
        )
        self._process.start()
        theirs.close()
        self.seed: int | None = None
        self.given = 0
        self._since = 0.0

    def give(self, seed: int) -> None:
        """Let the child try a case."""
        self.seed = seed
        self.given += 1
        self._since = time.monotonic()
        self.connection.send(seed)

    def answer(self) -> Outcome:
        """What came of the case that it was given; wait for it. A child that died is an outcome, too."""
        assert self.seed is not None
        seed, self.seed = self.seed, None
        try:
            return self.connection.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return Outcome(seed, "crashed", f"the process died: {name}", self._last_words())

    def overdue(self, limit_s: float) -> bool:
        return self.seed is not None and time.monotonic() - self._since > limit_s

    def stop(self, limit_s: float) -> Outcome:
        """End a child that does not answer; what is said of its case."""
        assert self.seed is not None
        seed, self.seed = self.seed, None
        if self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGABRT)  # faulthandler writes where it was
        self._process.join(10)
        said = self._last_words()
        self.close()
        return Outcome(seed, "crashed", f"no answer within {limit_s:.0f} s", said)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()
        self._printed.close()

    def _last_words(self) -> tuple[str, ...]:
        """Where it was, as faulthandler says it; else the last that it printed."""
        lines = Path(self._printed.name).read_text(errors="replace").splitlines()
        fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
        return tuple(lines[max(0, fatal[-1] - 2) :][:_LINES] if fatal else lines[-_LINES:])


def _serve(parents: Connection, connection: Connection, try_seed: Callable[[int], Outcome], printed: str) -> None:
    parents.close()  # a copy of it: with it, the end of the parent would not be seen
    descriptor = os.open(printed, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    faulthandler.enable(2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        connection.send(try_seed(seed))
        gc.freeze()  # a trace collects garbage: what is loaded by now is none
