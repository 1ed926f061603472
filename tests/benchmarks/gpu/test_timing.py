"""Latencies are percentiles of single calls; candidates run alternately."""

from __future__ import annotations

from benchmarks.gpu.timing import BURST, Latency, _percentiles, issue, latency


def test_percentiles_of_a_hundred_calls() -> None:
    assert _percentiles([number / 1e6 for number in range(100)]) == Latency(50.0, 95.0, 99.0)


def test_candidates_run_alternately_and_the_gpu_is_awaited() -> None:
    calls: list[str] = []
    found = latency(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, lambda: calls.append("wait"), 2 * BURST, 1
    )
    assert set(found) == {"a", "b"}
    timed = "".join("." if call == "wait" else call for call in calls)
    assert timed == "a.b." + 2 * ("a." * BURST + "b." * BURST)


def test_issue_waits_before_and_after_each_burst_alone_and_the_first_call_is_not_timed() -> None:
    calls: list[str] = []
    issue({"a": lambda: calls.append("a")}, lambda: calls.append("wait"), 5 * BURST, warm_up=1)
    timed = "".join("." if call == "wait" else call for call in calls)
    assert timed == "a." + 5 * ("a." + "a" * BURST + ".")
