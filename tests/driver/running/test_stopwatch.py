"""The stopwatch times contenders, such as a package and its original module, in turns. Percentiles are measured values.

No test compares real durations.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trtbuild.driver.workers import stopwatch
from trtbuild.driver.workers.stopwatch import (
    MIN_CALLS,
    MIN_WARMUP_CALLS,
    TURN_COUNT,
    Budget,
    Dropped,
    Latency,
    LocalContender,
    Turn,
    latency,
    percentile,
    time_in_turns,
)

SHORT = Budget(0.0, 0.0)


class FakeContender:
    """Records events in `calls`, such as ``eager turn``. `failing_event` raises Dropped.

    The first call takes twice `seconds`, and each later call takes `seconds`.
    """

    def __init__(self, calls: list[str], name: str, seconds: float = 0.001, failing_event: str = "") -> None:
        self._calls = calls
        self._name = name
        self._seconds = seconds
        self._failing_event = failing_event
        self.turns: list[Turn] = []

    def _record(self, event: str) -> None:
        self._calls.append(f"{self._name} {event}")
        if event == self._failing_event:
            raise Dropped(f"no {event}")

    def time_first_call(self) -> float:
        self._record("first")
        return 2 * self._seconds

    def warm_up(self, seconds: float) -> None:
        self._record("warm up")

    def time_turn(self, turn: Turn) -> list[float]:
        self._record("turn")
        self.turns.append(turn)
        return [self._seconds] * turn.least


def test_contenders_are_timed_in_turns_after_all_have_warmed_up() -> None:
    calls: list[str] = []
    package, eager = FakeContender(calls, "package"), FakeContender(calls, "eager", 0.5)
    timings = time_in_turns({"package": package, "eager": eager}, Budget(0.5, 1.0))
    assert (
        calls
        == ["package first", "package warm up", "eager first", "eager warm up"]
        + ["package turn", "eager turn"] * TURN_COUNT
    )
    assert timings["package"].count == MIN_CALLS and timings["eager"].latency_ms.p50 == 500.0  # type: ignore[union-attr]
    assert {turn.seconds for turn in package.turns} == {1.0 / TURN_COUNT} and all(turn.warms for turn in package.turns)
    assert not any(turn.warms for turn in eager.turns)  # one call takes longer than a turn


def test_a_slow_contender_gets_the_fewest_turns() -> None:
    calls: list[str] = []
    timings = time_in_turns(
        {"package": FakeContender(calls, "package"), "slow": FakeContender(calls, "slow", 60.0)}, Budget(0.5, 1.0)
    )
    assert timings["slow"].count == 2 and "slow warm up" not in calls  # type: ignore[union-attr]
    assert calls.count("package turn") == TURN_COUNT


@pytest.mark.parametrize("failing_event", ["first", "warm up", "turn"])
def test_a_contender_that_fails_is_dropped_and_the_others_continue(failing_event: str) -> None:
    calls: list[str] = []
    timings = time_in_turns(
        {
            "eager": FakeContender(calls, "eager", failing_event=failing_event),
            "package": FakeContender(calls, "package"),
        },
        SHORT,
    )
    assert isinstance(timings["eager"], Dropped) and str(timings["eager"]) == f"no {failing_event}"
    assert timings["package"].count == MIN_CALLS  # type: ignore[union-attr]
    assert calls.count("eager turn") == (1 if failing_event == "turn" else 0)


def test_a_turn_may_begin_with_a_call_that_is_not_timed() -> None:
    calls: list[int] = []
    contender = LocalContender(lambda: calls.append(1), lambda: None)
    assert len(contender.time_turn(Turn(0.0, 3, 5, warms=True))) == 3 and len(calls) == 4


def test_a_slow_call_at_the_start_of_a_later_turn_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    # the first call, one call in each of two turns, and two calls that must not be made
    durations_s = iter([1.0, 1.0, 15.0, 1.0, 1.0])

    def call() -> None:
        now_s[0] += next(durations_s)

    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    contender = LocalContender(call, lambda: None)
    contender.time_first_call()
    assert contender.time_turn(Turn(0.0, 1, 5)) == [1.0]
    assert contender.time_turn(Turn(20.0, 1, 5)) == [15.0], "the turn has 5 s left, but no call may follow a slow call"


def test_the_stopwatch_waits_after_every_call() -> None:
    events: list[str] = []
    contender = LocalContender(lambda: events.append("call"), lambda: events.append("wait"))
    timing = time_in_turns({"one": contender}, SHORT)["one"]
    assert timing.count == MIN_CALLS  # type: ignore[union-attr]
    assert events == ["call", "wait"] * (MIN_CALLS + MIN_WARMUP_CALLS)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 5), (90, 9), (99, 10), (100, 10)])
def test_percentiles_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], percent) == value


def test_a_single_value_is_every_percentile() -> None:
    assert set(vars(latency([0.002])).values()) == {2.0}


def test_a_summary_is_in_milliseconds() -> None:
    assert latency([0.003, 0.001]) == Latency(min=1.0, p50=1.0, p90=3.0, p99=3.0, max=3.0, mean=2.0)
