"""Measure calls that leave work on a CUDA stream.

Rules
1. `latencies` measures one call and the wait for the GPU, by the host's clock. The results are percentiles over all calls.
2. `host_times_us` measures how long a call keeps the host busy. Calls are made in short bursts, because a full queue would
   slow the host down. The wait for the GPU is not timed. One call before each burst is not timed either, because
   the previous burst may have used other shapes. The result is the median of the bursts' mean times.
3. The candidates of a comparison run alternately, in bursts of `BURST` calls, after a warm-up of all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: The number of calls in a burst.
BURST = 20


@dataclass(frozen=True)
class Latency:
    """Percentiles of the time of a call, in microseconds."""

    p50_us: float
    p95_us: float
    p99_us: float

    def __str__(self) -> str:
        return f"{self.p50_us:.0f} µs (p95 {self.p95_us:.0f}, p99 {self.p99_us:.0f})"


def latencies(
    candidates: Mapping[str, Callable[[], object]], synchronize: Callable[[], object], repeats: int, warm_up: int = 20
) -> dict[str, Latency]:
    """Return candidate → latency (rule 1)."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        for _ in range(warm_up):
            call()
        synchronize()
    for _ in range(max(1, repeats // BURST)):
        for name, call in candidates.items():
            for _ in range(BURST):
                started = time.perf_counter()
                call()
                synchronize()
                times[name].append(time.perf_counter() - started)
    return {name: _percentiles(seconds) for name, seconds in times.items()}


def host_times_us(
    candidates: Mapping[str, Callable[[], object]], synchronize: Callable[[], object], repeats: int, warm_up: int = 200
) -> dict[str, float]:
    """Return candidate → the microseconds for which a call keeps the host busy (rule 2)."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        for _ in range(warm_up):
            call()
        synchronize()
    for _ in range(max(5, repeats // BURST)):
        for name, call in candidates.items():
            call()
            synchronize()
            started = time.perf_counter()
            for _ in range(BURST):
                call()
            times[name].append((time.perf_counter() - started) / BURST)
            synchronize()
    return {name: statistics.median(seconds) * 1e6 for name, seconds in times.items()}


def _percentiles(times: list[float]) -> Latency:
    ordered = sorted(times)
    percentiles_us = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 for share in (0.5, 0.95, 0.99)]
    return Latency(*percentiles_us)
