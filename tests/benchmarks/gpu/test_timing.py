"""Latencies are percentiles of single calls; candidates run in alternating bursts."""

from __future__ import annotations

from benchmarks.gpu.timing import BURST, Latency, _percentiles, host_times_us, latencies


def test_percentiles_of_a_hundred_calls() -> None:
    assert _percentiles([number / 1e6 for number in range(100)]) == Latency(50.0, 95.0, 99.0)


def test_latencies_alternates_bursts_of_candidates_and_waits_for_the_gpu() -> None:
    calls: list[str] = []
    percentiles = latencies(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        lambda: calls.append("wait"),
        2 * BURST,
        warm_up=1,
    )
    assert set(percentiles) == {"a", "b"}
    timed = "".join("." if call == "wait" else call for call in calls)
    assert timed == "a.b." + 2 * ("a." * BURST + "b." * BURST)


def test_host_times_us_waits_only_before_and_after_each_burst() -> None:
    calls: list[str] = []
    host_times_us({"a": lambda: calls.append("a")}, lambda: calls.append("wait"), 5 * BURST, warm_up=1)
    timed = "".join("." if call == "wait" else call for call in calls)
    assert timed == "a." + 5 * ("a." + "a" * BURST + ".")
