"""How long calls take, one by one: warmed up, and waited for.

Rules
1. A call is timed from before it is made until the device has done it: latency as a caller who needs the answer sees it.
2. Nothing is timed before `warmup_s` seconds and `LEAST_WARMUP` calls have passed; the first call is told apart, because
   that is where kernels are compiled and graphs are captured.
3. Percentiles are values that were measured (nearest rank), not interpolations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_WARMUP = 3
#: Calls that are timed at least, and at most.
LEAST, MOST = 10, 100_000
#: A call that takes longer than this is not repeated for warm-up, and timed as seldom as it can be.
SLOW_S = 10.0


@dataclass(frozen=True)
class Budget:
    """Seconds for warm-up and for timing, of one shape."""

    warmup_s: float
    duration_s: float


def measure(call: Callable[[], object], wait: Callable[[], object], budget: Budget) -> dict[str, Any]:
    """The latencies of `call`, as JSON: ``first_s``, ``count`` and ``latency_ms``. `wait` waits for the device."""
    first_s = _timed(call, wait)
    end, warmed = time.perf_counter() + budget.warmup_s, 1
    while first_s < SLOW_S and (warmed < LEAST_WARMUP or time.perf_counter() < end):
        _timed(call, wait)
        warmed += 1
    times: list[float] = []
    end = time.perf_counter() + budget.duration_s
    while len(times) < MOST and (len(times) < LEAST or time.perf_counter() < end):
        times.append(_timed(call, wait))
        if times[-1] > SLOW_S and len(times) >= 2:
            break
    return {"first_s": round(first_s, 6), "count": len(times), "latency_ms": summary(times)}


def summary(times_s: Sequence[float]) -> dict[str, float]:
    """Percentiles and mean, in milliseconds."""
    ordered = sorted(times_s)
    found = {
        "min": ordered[0],
        **{f"p{percent}": percentile(ordered, percent) for percent in (50, 90, 99)},
        "max": ordered[-1],
        "mean": sum(ordered) / len(ordered),
    }
    return {name: round(seconds * 1e3, 6) for name, seconds in found.items()}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all are not above. `ordered` is not empty."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _timed(call: Callable[[], object], wait: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started
