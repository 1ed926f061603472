"""A function that runs in a forked process changes nothing in this process. If the fork dies, no error is raised."""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from trtbuild.stages.trace.proof.background import ForkedCall


def test_the_answer_comes_from_a_process_that_does_not_change_this_one() -> None:
    calls_in_this_process: list[int] = []

    def process_id() -> int:
        calls_in_this_process.append(1)
        return os.getpid()

    with ForkedCall(process_id) as call:
        assert call.answer() not in (None, os.getpid())
    assert calls_in_this_process == []


def test_a_call_that_dies_raises_or_hangs_returns_none() -> None:
    def dies() -> None:
        faulthandler.disable()  # pytest's handler would write a long traceback into the log
        os.kill(os.getpid(), signal.SIGSEGV)

    def raises() -> None:
        raise ValueError("no")

    for function in (dies, raises):
        with ForkedCall(function) as call:
            assert call.answer() is None
    with ForkedCall(lambda: time.sleep(60), patience_s=0.2) as call:
        assert call.answer() is None


@pytest.mark.parametrize("function", ["pipe", "fork"])
def test_a_call_without_a_process_returns_none(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "none is left")

    descriptors = [*Path("/proc/self/fd").iterdir()]
    monkeypatch.setattr(os, function, refuse)
    with ForkedCall(lambda: 7) as call:
        assert call.answer() is None
    assert [*Path("/proc/self/fd").iterdir()] == descriptors


def test_the_end_of_the_block_ends_the_process() -> None:
    with ForkedCall(lambda: time.sleep(60)) as call:
        child = call._child
    assert child is not None
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return
    raise AssertionError("the process still exists")


def test_the_answer_may_come_through_a_descriptor_of_1024_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process cannot open so many files")
    open_pipe = os.pipe

    def pipe_with_large_descriptor() -> tuple[int, int]:
        read_end, write_end = open_pipe()
        large = fcntl.fcntl(read_end, fcntl.F_DUPFD_CLOEXEC, 1024)
        os.close(read_end)
        return large, write_end

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        monkeypatch.setattr(os, "pipe", pipe_with_large_descriptor)
        with ForkedCall(lambda: 7) as call:
            assert call._answer_pipe is not None and call._answer_pipe >= 1024
            assert call.answer() == 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
