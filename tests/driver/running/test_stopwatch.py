"""Percentiles are values that were measured, and calls are waited for. (No test here looks at a clock.)"""

from __future__ import annotations

import pytest

from trtbuild.driver.running.stopwatch import LEAST, LEAST_WARMUP, Budget, measure, percentile, summary


def test_every_call_is_waited_for_after_it_was_made() -> None:
    told: list[str] = []
    found = measure(lambda: told.append("call"), lambda: told.append("wait"), Budget(0.0, 0.0))
    assert found["count"] == LEAST
    assert told == ["call", "wait"] * (LEAST + LEAST_WARMUP)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 5), (90, 9), (99, 10), (100, 10)])
def test_percentiles_by_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], percent) == value


def test_a_single_value_is_every_percentile() -> None:
    assert set(summary([0.002]).values()) == {2.0}


def test_milliseconds() -> None:
    assert summary([0.003, 0.001]) == {"min": 1.0, "p50": 1.0, "p90": 3.0, "p99": 3.0, "max": 3.0, "mean": 2.0}
