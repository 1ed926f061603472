"""A function in a forked copy changes nothing here, and its end is not an error."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

from trtbuild.stages.trace.proof.background import ForkedCall


def test_the_answer_comes_from_another_process_and_nothing_stays_here() -> None:
    left: list[int] = []

    def look() -> int:
        left.append(1)
        return os.getpid()

    with ForkedCall(look) as call:
        assert call.answer() not in (None, os.getpid())
    assert left == []


def test_a_call_that_dies_raises_or_hangs_returns_none() -> None:
    def dies() -> None:
        faulthandler.disable()  # pytest's would write a page into the test's log
        os.kill(os.getpid(), signal.SIGSEGV)

    def fails() -> None:
        raise ValueError("no")

    for look in (dies, fails):
        with ForkedCall(look) as call:
            assert call.answer() is None
    with ForkedCall(lambda: time.sleep(60), patience_s=0.2) as call:
        assert call.answer() is None


def test_it_is_ended_with_the_block() -> None:
    with ForkedCall(lambda: time.sleep(60)) as call:
        child = call._child
    assert child is not None
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return
    raise AssertionError("the copy is still there")
