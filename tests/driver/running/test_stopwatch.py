"""Percentiles are values that were measured, and calls are waited for. (No test here looks at a clock.)"""

from __future__ import annotations

import pytest

from trtbuild.driver.workers.stopwatch import (
    MIN_CALLS,
    MIN_WARMUP_CALLS,
    TURNS,
    Budget,
    Dropped,
    Latency,
    Timed,
    Turn,
    in_turns,
    percentile,
    summary,
)

SHORT = Budget(0.0, 0.0)


class FakeContender:
    """Records its calls; each call takes `seconds`, or fails."""

    def __init__(self, told: list[str], name: str, seconds: float = 0.001, fails: str = "") -> None:
        self._timing = told
        self._name = name
        self._seconds = seconds
        self._fails = fails
        self.turns: list[Turn] = []

    def _tell(self, what: str) -> None:
        self._timing.append(f"{self._name} {what}")
        if what == self._fails:
            raise Dropped(f"no {what}")

    def first(self) -> float:
        self._tell("first")
        return 2 * self._seconds

    def warm_up(self, seconds: float) -> None:
        self._tell("warm up")

    def times(self, turn: Turn) -> list[float]:
        self._tell("turn")
        self.turns.append(turn)
        return [self._seconds] * turn.least


def test_what_is_compared_is_timed_in_turns_after_all_of_it_is_warm() -> None:
    told: list[str] = []
    ours, eager = FakeContender(told, "ours"), FakeContender(told, "eager", 0.5)
    found = in_turns({"ours": ours, "eager": eager}, Budget(0.5, 1.0))
    assert told == ["ours first", "ours warm up", "eager first", "eager warm up"] + ["ours turn", "eager turn"] * TURNS
    assert found["ours"].count == MIN_CALLS and found["eager"].latency_ms.p50 == 500.0  # type: ignore[union-attr]
    assert {turn.seconds for turn in ours.turns} == {1.0 / TURNS} and all(turn.warms for turn in ours.turns)
    assert not any(turn.warms for turn in eager.turns)  # a call is longer than a turn


def test_a_slow_contender_gets_as_few_turns_as_can_be() -> None:
    told: list[str] = []
    found = in_turns({"ours": FakeContender(told, "ours"), "slow": FakeContender(told, "slow", 60.0)}, Budget(0.5, 1.0))
    assert found["slow"].count == 2 and "slow warm up" not in told  # type: ignore[union-attr]
    assert told.count("ours turn") == TURNS


@pytest.mark.parametrize("fails", ["first", "warm up", "turn"])
def test_what_fails_is_dropped_and_the_others_go_on(fails: str) -> None:
    told: list[str] = []
    found = in_turns({"eager": FakeContender(told, "eager", fails=fails), "ours": FakeContender(told, "ours")}, SHORT)
    assert isinstance(found["eager"], Dropped) and str(found["eager"]) == f"no {fails}"
    assert found["ours"].count == MIN_CALLS  # type: ignore[union-attr]
    assert told.count("eager turn") == (fails == "turn")


def test_a_turn_may_begin_with_a_call_that_is_not_timed() -> None:
    calls: list[int] = []
    timed = Timed(lambda: calls.append(1), lambda: None)
    assert len(timed.times(Turn(0.0, 3, 5, warms=True))) == 3 and len(calls) == 4


def test_every_call_is_waited_for_after_it_was_made() -> None:
    told: list[str] = []
    timed = Timed(lambda: told.append("call"), lambda: told.append("wait"))
    found = in_turns({"one": timed}, SHORT)["one"]
    assert found.count == MIN_CALLS  # type: ignore[union-attr]
    assert told == ["call", "wait"] * (MIN_CALLS + MIN_WARMUP_CALLS)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 5), (90, 9), (99, 10), (100, 10)])
def test_percentiles_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], percent) == value


def test_a_single_value_is_every_percentile() -> None:
    assert set(vars(summary([0.002])).values()) == {2.0}


def test_milliseconds() -> None:
    assert summary([0.003, 0.001]) == Latency(min=1.0, p50=1.0, p90=3.0, p99=3.0, max=3.0, mean=2.0)
