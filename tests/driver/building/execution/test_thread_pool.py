"""A thread of the pool starts when it is needed, and the process does not wait for it at exit."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from trtbuild.driver.building.execution.thread_pool import FinishedTask, ThreadPool


def test_an_idle_thread_takes_the_next_task() -> None:
    results: SimpleQueue[FinishedTask[int, str]] = SimpleQueue()
    pool: ThreadPool[int, str] = ThreadPool(4, results)
    names = set()
    for number in range(3):
        pool.submit(number, lambda: threading.current_thread().name)
        task, name = results.get(timeout=30)
        pool.open_task_count -= 1  # in a build, the executor does this
        assert task == number
        names.add(name)
    assert len(names) == 1
    assert pool.shut_down(30)


def test_an_exception_is_returned_as_the_result() -> None:
    results: SimpleQueue[FinishedTask[int, str]] = SimpleQueue()
    pool: ThreadPool[int, str] = ThreadPool(1, results)

    def work() -> str:
        raise SystemExit(3)

    pool.submit(7, work)
    task, error = results.get(timeout=30)
    assert task == 7 and isinstance(error, SystemExit)
    pool.submit(8, lambda: "it still works")
    assert results.get(timeout=30) == (8, "it still works")
    assert pool.shut_down(30)


def test_neither_shut_down_nor_the_process_waits_for_a_thread_that_hangs() -> None:
    program = """
import threading
from queue import SimpleQueue
from trtbuild.driver.building.execution.thread_pool import ThreadPool
pool = ThreadPool(1, SimpleQueue())
pool.submit("stuck", lambda: threading.Event().wait(600))
print(pool.shut_down(0.1))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout == "False\n"


def test_a_thread_that_cannot_be_started_does_not_prevent_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    pool: ThreadPool[int, str] = ThreadPool(1, SimpleQueue())
    with pytest.raises(RuntimeError, match="can't start"):
        pool.submit(1, lambda: "")
    assert pool.shut_down(30)
