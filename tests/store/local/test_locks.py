"""Locks and sessions of several processes and threads."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.store.local import locks
from trtbuild.store.local.leftovers import remove_leftovers
from trtbuild.store.local.local import LocalStore

KEY = "ab" * 32

BUILDER_PROGRAM = """
import sys
from trtbuild.store.local.local import LocalStore
store = LocalStore(sys.argv[1])
print("ready", flush=True)
with store.building("ab" * 32):
    print("building", flush=True)
    sys.stdin.readline()
"""


def read_line_in_background(child: Any) -> tuple[threading.Thread, list[str]]:
    """Start a thread that reads a line of the process `child`. Returns the thread, and a list for the line."""
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.append(child.read_line()), daemon=True)
    thread.start()
    return thread, lines


def test_only_one_process_builds_a_key_and_the_lock_ends_with_the_process(
    tmp_path: Path, child: Callable[..., Any]
) -> None:
    first = child(BUILDER_PROGRAM, tmp_path)
    assert [first.read_line(), first.read_line()] == ["ready", "building"]
    second = child(BUILDER_PROGRAM, tmp_path)
    assert second.read_line() == "ready"
    thread, lines = read_line_in_background(second)
    thread.join(0.2)
    assert lines == []
    first.kill()
    thread.join(10)
    assert lines == ["building"]
    second.send()
    second.finish()
    assert not (tmp_path / "locks" / KEY).exists()


def test_many_processes_build_one_after_the_other(tmp_path: Path, child: Callable[..., Any]) -> None:
    code = """
    import os, sys, time
    from trtbuild.store.local.local import LocalStore
    store, inside = LocalStore(sys.argv[1]), sys.argv[1] + "/inside"
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(60):
        with store.building("ab" * 32):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            time.sleep(0.001)  # so that another process would find the file
            os.unlink(inside)
    """
    builders = [child(code, tmp_path) for _ in range(3)]
    assert [builder.read_line() for builder in builders] == ["ready"] * 3
    for builder in builders:
        builder.send()
    for builder in builders:
        builder.finish()


def test_a_waiter_for_a_removed_lock_file_waits_again(local: LocalStore) -> None:
    """The holder deletes its lock file. Before it releases the old file, a new one is created and locked."""
    local.put_bytes(b"x")
    path = str(local.root / "locks" / KEY)
    held = locks._acquire_lock(local.entries.layout, path)
    inside = threading.Event()

    def build() -> None:
        with local.building(KEY):
            inside.set()

    waiting = threading.Thread(target=build)
    waiting.start()
    time.sleep(0.1)  # so that the thread waits for the old file
    Path(path).unlink()
    with local.building(KEY):
        locks._close(held)
        assert not inside.wait(0.2)
    waiting.join(10)
    assert inside.is_set()


def assert_is_free(path: Path) -> None:
    held = locks.lock_if_abandoned(str(path))
    assert held is not None
    os.close(held)


def test_a_subprocess_does_not_inherit_the_lock(local: LocalStore) -> None:
    path = local.root / "locks" / KEY
    with local.session(), local.building(KEY):
        kept = path.with_name("kept")
        os.link(path, kept)  # `path` is deleted at the end of the block. The check uses the second name of the file.
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
        assert locks.lock_if_abandoned(str(kept)) is None
    try:
        assert_is_free(kept)
    finally:
        sleeper.communicate(b"\n")


def _wait_for(event: Any) -> None:
    event.wait(30)


def test_a_forked_worker_does_not_keep_the_lock(local: LocalStore) -> None:
    context = multiprocessing.get_context("fork")
    may_end = context.Event()
    path = local.root / "locks" / KEY
    with local.building(KEY):
        kept = path.with_name("kept")
        os.link(path, kept)
        worker = context.Process(target=_wait_for, args=(may_end,))
        worker.start()
        assert locks.lock_if_abandoned(str(kept)) is None
    try:
        assert_is_free(kept)
    finally:
        may_end.set()
        worker.join()


def _open_paths(pid: int) -> list[Path]:
    paths = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the process has just closed this descriptor
            paths.append(entry.readlink())
    return paths


def test_a_process_that_is_forked_while_a_lock_is_opened_does_not_keep_it(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put_bytes(b"x")  # creates the directories
    context = multiprocessing.get_context("fork")
    may_end = context.Event()
    path = local.root / "locks" / KEY
    opened, forked = threading.Event(), threading.Event()
    workers: list[Any] = []
    real_open = os.open

    def slow_open(file: str, *arguments: Any, **options: Any) -> int:
        descriptor = real_open(file, *arguments, **options)
        if file == str(path) and not opened.is_set():
            opened.set()
            forked.wait(0.3)  # enough time for a fork that does not wait for `_descriptors_lock`
        return descriptor

    def fork() -> None:
        opened.wait(10)
        workers.append(context.Process(target=_wait_for, args=(may_end,)))
        workers[0].start()
        forked.set()

    monkeypatch.setattr(os, "open", slow_open)
    forker = threading.Thread(target=fork)
    forker.start()
    try:
        with local.building(KEY):
            forker.join(10)
            deadline = time.monotonic() + 10  # the new process closes the lock file right after the fork
            while path in _open_paths(workers[0].pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert path not in _open_paths(workers[0].pid)
    finally:
        may_end.set()
        workers[0].join()


def test_a_session_whose_file_is_removed_before_it_is_locked_makes_another_file(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that ends at this moment takes the file for that of a dead process."""
    local.put_bytes(b"x")
    flock, removed = fcntl.flock, list[int]()

    def lock_after_a_collection(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not removed:
            removed.append(0)  # the collection locks files, too
            removed[0] = remove_leftovers(local.entries.layout, time.time_ns() + 10**9, 0.0)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_after_a_collection)
    with local.session():
        assert removed == [1]
        (file,) = (local.root / "sessions").iterdir()
        assert locks.lock_if_abandoned(str(file)) is None
    assert list((local.root / "sessions").iterdir()) == []


def test_touches_an_entry_once_per_session(local: LocalStore, age: Callable[..., None], entry_path: Any) -> None:
    output = local.put_bytes(b"x")
    path = entry_path(local, "cas", output.sha256)
    age(local, 1000)
    with local.session():
        local.has(output.sha256)
        first = path.stat().st_mtime_ns
        assert first > time.time_ns() - 100 * 10**9
        time.sleep(0.02)  # so that another touch would change the time
        local.has(output.sha256)
        local.get_bytes(output.sha256)
        assert path.stat().st_mtime_ns == first
    local.has(output.sha256)  # without a session, every use touches the entry
    assert path.stat().st_mtime_ns > first


def test_an_exclusive_lock_waits_for_shared_locks(local: LocalStore) -> None:
    local.put_bytes(b"x")
    order: list[str] = []

    def collector() -> None:
        with local.entries.lock.exclusive():
            order.append("exclusive")

    with local.entries.lock.shared(), local.entries.lock.shared():
        thread = threading.Thread(target=collector)
        thread.start()
        thread.join(0.1)
        order.append("shared")
    thread.join()
    assert order == ["shared", "exclusive"]
