"""The rules for when a silent remote counts as down, with a fake clock."""

from __future__ import annotations

import pytest

from trtbuild.store.transports.pace import QUEUED, Flow, Pace, Silence
from trtbuild.store.transports.transport import SLOWEST


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_for_a_patience_is_silence(clock: Clock) -> None:
    pace = Pace(Flow(), 4.0, clock)
    assert pace.left_s() == 4.0
    clock.now += 3.0
    assert pace.left_s() == 1.0
    clock.now += 1.0
    with pytest.raises(Silence, match="nothing came for 4 s"):
        pace.left_s()


def test_a_rate_below_the_limit_counts_as_silence(clock: Clock) -> None:
    for speed, silent in ((SLOWEST // 2, True), (SLOWEST + 1, False)):
        pace = Pace(Flow(), 4.0, clock)
        for _ in range(100):
            clock.now += 1
            pace.came(speed)
            if silent and clock.now - 100 >= 4:
                with pytest.raises(Silence, match="hardly anything"):
                    pace.left_s()
                break
            assert pace.left_s() > 0
        clock.now = 100.0


def test_connecting_asking_and_the_head_share_a_patience(clock: Clock) -> None:
    pace = Pace(Flow(), 4.0, clock)
    clock.now += 1.0
    pace.came(100)
    pace.head_came()
    assert pace.left_s() == 3.0
    clock.now += 3.0
    with pytest.raises(Silence):
        pace.left_s()


def test_a_late_head_leaves_a_fifth_more(clock: Clock) -> None:
    pace = Pace(Flow(), 4.0, clock)
    clock.now += 3.9
    pace.head_came()
    assert pace.left_s() == pytest.approx(0.8)
    pace.came(SLOWEST)
    clock.now += 0.8
    assert pace.left_s() == 4.0, "a whole window again"


def test_one_may_wait_while_the_others_move(clock: Clock) -> None:
    flow = Flow()
    waiting = Pace(flow, 4.0, clock)
    for _ in range(QUEUED - 1):
        clock.now += 4.0
        flow.moved += 4 * SLOWEST
        assert waiting.left_s() > 0
    clock.now += 4.0
    flow.moved += 4 * SLOWEST
    with pytest.raises(Silence):
        waiting.left_s()


def test_others_that_drip_do_not_help(clock: Clock) -> None:
    flow = Flow()
    waiting = Pace(flow, 4.0, clock)
    clock.now += 4.0
    flow.moved += SLOWEST
    with pytest.raises(Silence):
        waiting.left_s()


def test_patience_grows_where_that_is_right(clock: Clock) -> None:
    pace = Pace(Flow(), 4.0, clock)
    clock.now += 3.0
    pace.allow(10.0)
    assert pace.left_s() == 14.0
    clock.now += 13.9
    assert pace.left_s() == pytest.approx(0.1)
