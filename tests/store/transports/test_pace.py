"""The rules of `Pace`, with a fake clock: when a connection counts as silent."""

from __future__ import annotations

import pytest

from trtbuild.store.transports.pace import MAX_QUEUE_FACTOR, Pace, Silence, Traffic
from trtbuild.store.transports.transport import MIN_BYTES_PER_S


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_no_bytes_during_the_patience_is_silence(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    assert pace.remaining_s() == 4.0
    clock.now += 3.0
    assert pace.remaining_s() == 1.0
    clock.now += 1.0
    with pytest.raises(Silence, match="nothing came for 4 s"):
        pace.remaining_s()


def test_a_rate_below_the_limit_counts_as_silence(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    for _ in range(4):
        assert pace.remaining_s() > 0
        clock.now += 1
        pace.count_received(MIN_BYTES_PER_S // 2)
    with pytest.raises(Silence, match="hardly anything"):
        pace.remaining_s()


def test_a_rate_above_the_limit_never_counts_as_silence(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    for _ in range(100):
        clock.now += 1
        pace.count_received(MIN_BYTES_PER_S + 1)
        assert pace.remaining_s() > 0


def test_the_window_of_the_body_ends_when_the_first_window_would_have_ended(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    clock.now += 1.0
    pace.count_received(100)
    pace.note_head()
    assert pace.remaining_s() == 3.0
    clock.now += 3.0
    with pytest.raises(Silence):
        pace.remaining_s()


def test_after_a_late_head_a_fifth_of_the_patience_remains(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    clock.now += 3.9
    pace.note_head()
    assert pace.remaining_s() == pytest.approx(0.8)
    pace.count_received(MIN_BYTES_PER_S)
    clock.now += 0.8
    assert pace.remaining_s() == 4.0, "the next window lasts the full patience"


def test_a_connection_may_wait_while_others_transfer_bytes(clock: Clock) -> None:
    traffic = Traffic()
    waiting = Pace(traffic, patience_s=4.0, clock=clock)
    for _ in range(MAX_QUEUE_FACTOR - 1):
        clock.now += 4.0
        traffic.bytes_moved += 4 * MIN_BYTES_PER_S
        assert waiting.remaining_s() > 0
    clock.now += 4.0
    traffic.bytes_moved += 4 * MIN_BYTES_PER_S
    with pytest.raises(Silence):
        waiting.remaining_s()


def test_a_connection_may_not_wait_for_others_that_are_too_slow(clock: Clock) -> None:
    traffic = Traffic()
    waiting = Pace(traffic, patience_s=4.0, clock=clock)
    clock.now += 4.0
    traffic.bytes_moved += MIN_BYTES_PER_S
    with pytest.raises(Silence):
        waiting.remaining_s()


def test_a_longer_window_extends_the_patience(clock: Clock) -> None:
    pace = Pace(Traffic(), patience_s=4.0, clock=clock)
    clock.now += 3.0
    pace.begin_longer_window(extra_s=10.0)
    assert pace.remaining_s() == 14.0
    clock.now += 13.9
    assert pace.remaining_s() == pytest.approx(0.1)
