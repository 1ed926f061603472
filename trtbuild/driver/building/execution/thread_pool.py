"""A thread pool that runs the steps of a build.

Rules
1. The threads are daemons, so the process can end while they run. A step can wait for minutes where a signal cannot
   interrupt it, for example for the lock of a key that another build holds. Ctrl-C must not wait for such a step.
2. Each thread lives until its pool is shut down, because Linux ends a worker process when the thread that started it ends
   (prctl(2), PR_SET_PDEATHSIG). Later steps use the same worker process.
3. A thread is started only when there is a task for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: A task, and its result or the exception that it raised.
FinishedTask = tuple[Task, "Result | BaseException"]


class ThreadPool(Generic[Task, Result]):
    """Up to `size` threads. Their results go to the queue `results`, which several pools may share."""

    def __init__(self, size: int, results: SimpleQueue[FinishedTask[Task, Result]]) -> None:
        self._size = size
        self._results = results
        self._tasks: SimpleQueue[tuple[Task, Callable[[], Result]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: The number of submitted tasks whose results were not read yet. The reader of `results` decrements it.
        self.open_task_count = 0

    def submit(self, task: Task, work: Callable[[], Result]) -> None:
        """Call `work` in a thread as soon as one is free."""
        self.open_task_count += 1
        if len(self._threads) < min(self.open_task_count, self._size):
            thread = threading.Thread(target=self._run_tasks, name=f"trtbuild-{len(self._threads)}", daemon=True)
            thread.start()  # if that fails, `shut_down` must not wait for the thread
            self._threads.append(thread)
        self._tasks.put((task, work))

    def shut_down(self, timeout_s: float) -> bool:
        """End the threads after all submitted tasks. Return whether all threads have ended within `timeout_s`."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run_tasks(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, work = item
            result: Result | BaseException
            try:
                result = work()
            except BaseException as error:
                result = error
            self._results.put((task, result))
