"""Run a function in a forked copy of this process. Its changes of modules and globals, and its crashes, do not affect
this process.

Rules
1. The copy answers with one JSON value. If there is no answer (it died, it hung, the fork failed), the answer is None.
   This is not an error: the caller can do without the answer.
2. The copy has only the calling thread. So torch computes in one thread there. A copy that takes too long is ended,
   because it may wait for a lock that another thread held during the fork.
3. The copy dies with this process, writes nothing to its standard output and error, and runs no exit handlers.
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
from typing import Any

import torch

#: A copy that has not answered after this many seconds is ended.
PATIENCE_S = 120.0


class ForkedCall:
    """``with ForkedCall(function) as call: …; call.answer()``: `function` runs in the copy."""

    def __init__(self, function: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        self._function = function
        self._deadline = time.monotonic() + patience_s
        self._child: int | None = None
        self._pipe: int | None = None

    def __enter__(self) -> ForkedCall:
        if not hasattr(os, "fork") or sys.platform == "darwin":  # system libraries of macOS do not survive a fork
            return self
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # user code may have replaced these streams by other objects
                stream.flush()
        parent, (reading, writing) = os.getpid(), os.pipe()
        try:
            child = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            return self
        if child == 0:
            _answer(self._function, writing, parent)
        os.close(writing)
        self._child, self._pipe = child, reading
        return self

    def answer(self) -> Any:
        """The result of `function`; None if there is no answer."""
        if self._pipe is None:
            return None
        text = b""
        while True:
            remaining_s = self._deadline - time.monotonic()
            if remaining_s <= 0 or not select.select([self._pipe], [], [], remaining_s)[0]:
                return None
            block = os.read(self._pipe, 1 << 16)
            if not block:
                break
            text += block
        try:
            return json.loads(text)
        except ValueError:
            return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._child is not None and self._pipe is not None:
            os.close(self._pipe)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # user code may wait for any child
                os.kill(self._child, signal.SIGKILL)  # the copy may have ended already
                os.waitpid(self._child, 0)
        self._child = self._pipe = None


def _answer(function: Callable[[], Any], writing: int, parent: int) -> None:
    """Run the copy until it exits."""
    try:
        if sys.platform == "linux":
            pr_set_pdeathsig = 1  # <linux/prctl.h>
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        torch.set_num_threads(1)
        text = json.dumps(function()).encode()
        while text:
            text = text[os.write(writing, text) :]
    except BaseException:
        os._exit(1)
    os._exit(0)
