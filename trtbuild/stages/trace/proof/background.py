"""Run a function in a forked copy of this process, where it cannot change or crash this process.

Rules
1. The copy answers with one JSON value. If the copy dies or hangs, or cannot be started, the answer is None. This is not an
   error: the caller can continue without the answer.
2. A fork copies only the calling thread. So torch uses one thread in the copy. A copy that takes too long is killed,
   because it may wait for a lock that another thread held during the fork.
3. The copy dies with this process (on Linux), writes nothing to its standard output and error, and runs no exit handlers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import torch

#: A copy has this many seconds to answer, unless the caller gives another `patience_s`.
PATIENCE_S = 120.0


class ForkedCall:
    """Runs `function` in a forked copy: ``with ForkedCall(function) as call: …; call.answer()``.

    `answer` returns at most `patience_s` seconds after the start of the copy. The end of the block kills the copy."""

    def __init__(self, function: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        self._function = function
        self._deadline = time.monotonic() + patience_s
        self._child: int | None = None
        self._answer_pipe: int | None = None

    def __enter__(self) -> ForkedCall:
        if not hasattr(os, "fork") or sys.platform == "darwin":  # system libraries of macOS do not survive a fork
            return self
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # user code may have replaced these streams by other objects
                stream.flush()
        parent = os.getpid()
        ends: tuple[int, ...] = ()
        try:
            read_end, write_end = ends = os.pipe()
            child = os.fork()
        except OSError:
            for end in ends:
                os.close(end)
            return self
        if child == 0:
            _run_copy(self._function, write_end, parent)
        os.close(write_end)
        self._child, self._answer_pipe = child, read_end
        return self

    def answer(self) -> Any:
        """The result of `function`; None if there is no answer."""
        if self._answer_pipe is None:
            return None
        poller, text = select.poll(), b""  # select.select refuses descriptors of 1024 and more
        poller.register(self._answer_pipe, select.POLLIN)
        while True:
            remaining_s = max(0.0, self._deadline - time.monotonic())  # 0 after the deadline: an answer may be there
            if not poller.poll(remaining_s * 1000):
                return None
            block = os.read(self._answer_pipe, 1 << 16)
            if not block:
                break
            text += block
        try:
            return json.loads(text)
        except ValueError:
            return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._child is not None and self._answer_pipe is not None:
            os.close(self._answer_pipe)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # user code may have called os.wait
                os.kill(self._child, signal.SIGKILL)  # the copy may have ended already
                os.waitpid(self._child, 0)
        self._child = self._answer_pipe = None


def _run_copy(function: Callable[[], Any], write_end: int, parent: int) -> NoReturn:
    try:
        if sys.platform == "linux":
            pr_set_pdeathsig = 1  # <linux/prctl.h>
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
            if os.getppid() != parent:  # the parent ended before the call of prctl
                os._exit(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        torch.set_num_threads(1)
        text = json.dumps(function()).encode()
        while text:
            text = text[os.write(write_end, text) :]
    except BaseException:
        os._exit(1)
    os._exit(0)
