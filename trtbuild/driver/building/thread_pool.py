"""Threads that do a build's steps.

Rules
1. They are daemons. A step can be stuck where no signal reaches it (it waits for the lock of a key that another build is
   building, for minutes), and Ctrl-C must not wait for that. What such a thread holds ends with the process.
2. Each lives until its crew is dismissed. Linux ends a worker process when the thread that started it ends
   (prctl(2), PR_SET_PDEATHSIG), and workers are used by one step after another.
3. No more of them are started than there is work for at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: A task, and what came of it: a result or an exception.
Done = tuple[Task, "Result | BaseException"]


class Crew(Generic[Task, Result]):
    """Up to `size` threads; what they have done goes to the queue `done`, which several crews may share."""

    def __init__(self, size: int, done: SimpleQueue[Done[Task, Result]]) -> None:
        self._size = size
        self._done = done
        self._work: SimpleQueue[tuple[Task, Callable[[], Result]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: Tasks that were given and are not taken out of `done` yet.
        self.busy = 0

    def give(self, task: Task, work: Callable[[], Result]) -> None:
        """Have `work` done as soon as a thread is free."""
        self.busy += 1
        if len(self._threads) < min(self.busy, self._size):
            thread = threading.Thread(target=self._serve, name=f"trtbuild-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((task, work))

    def dismiss(self, timeout_s: float) -> bool:
        """Let the threads go home when they have done what they do; whether all did, within that time."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (given := self._work.get()) is not None:
            task, work = given
            found: Result | BaseException
            try:
                found = work()
            except BaseException as error:
                found = error
            self._done.put((task, found))
