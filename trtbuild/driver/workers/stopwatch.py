"""How long calls take, one by one: warmed up, and waited for.

Rules
1. A call is timed from before it is made until the device has done it: latency as a caller who needs the answer sees it.
2. Nothing is timed before `warmup_s` seconds and `LEAST_WARMUP` calls have passed; the first call is told apart, because
   that is where kernels are compiled and graphs are captured.
3. Percentiles are values that were measured (nearest rank), not interpolations.
4. What is compared is timed in turns, after everything has been warmed up: what else this machine does then slows all of
   them alike. What fails is dropped, and the others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LEAST_WARMUP = 3
#: Calls that are timed at least, and at most.
LEAST, MOST = 10, 100_000
#: Turns of each where several are compared.
TURNS = 10
#: A call that takes longer than this is not repeated for warm-up, and timed as seldom as it can be.
SLOW_S = 10.0


@dataclass(frozen=True)
class Budget:
    """Seconds for warm-up and for timing, of one shape."""

    warmup_s: float
    duration_s: float


class Dropped(Exception):
    """A contender cannot be timed. The text says why."""


class Contender(Protocol):
    """What is timed. Its methods raise Dropped."""

    def first(self) -> float:
        """The seconds of the first call."""

    def warm_up(self, seconds: float) -> None:
        """Calls that nobody times."""

    def times(self, turn: Turn) -> list[float]:
        """The seconds of each call of a turn."""


@dataclass(frozen=True)
class Turn:
    """So many seconds, and so many calls at least and at most. `warms` is whether one more comes first, which is not
    timed: something else has run meanwhile."""

    seconds: float
    least: int
    most: int
    warms: bool = False


class Timed:
    """A call in this process; `wait` waits for the device."""

    def __init__(self, call: Callable[[], object], wait: Callable[[], object]) -> None:
        self._call = call
        self._wait = wait

    def first(self) -> float:
        return self._timed()

    def warm_up(self, seconds: float) -> None:
        end, warmed = time.perf_counter() + seconds, 1  # the first call is one
        while warmed < LEAST_WARMUP or time.perf_counter() < end:
            self._timed()
            warmed += 1

    def times(self, turn: Turn) -> list[float]:
        if turn.warms:
            self._timed()
        found: list[float] = []
        end = time.perf_counter() + turn.seconds
        while len(found) < turn.most and (len(found) < turn.least or time.perf_counter() < end):
            found.append(self._timed())
            if found[-1] > SLOW_S and len(found) >= 2:
                break
        return found

    def _timed(self) -> float:
        started = time.perf_counter()
        self._call()
        self._wait()
        return time.perf_counter() - started


def in_turns(contenders: Mapping[str, Contender], budget: Budget) -> dict[str, dict[str, Any] | Dropped]:
    """The latencies of each, as JSON: ``first_s``, ``count`` and ``latency_ms``; or why there are none (rule 4)."""
    first: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    dropped: dict[str, Dropped] = {}
    for name, contender in contenders.items():
        try:
            first[name] = contender.first()
            if first[name] < SLOW_S:
                contender.warm_up(budget.warmup_s)
            times[name] = []
        except Dropped as error:
            dropped[name] = error
    turns = TURNS if len(times) > 1 else 1
    seconds, least, most = budget.duration_s / turns, math.ceil(LEAST / turns), MOST // turns
    for _ in range(turns):
        for name in [name for name in times if not _is_slow(times[name])]:
            last = times[name][-1] if times[name] else first[name]
            turn = Turn(seconds, least, most, warms=turns > 1 and last < seconds)
            try:
                times[name] += contenders[name].times(turn)
            except Dropped as error:
                dropped[name] = error
                del times[name]
    return {name: dropped[name] if name in dropped else _told(first[name], times[name]) for name in contenders}


def _told(first_s: float, times: Sequence[float]) -> dict[str, Any]:
    return {"first_s": round(first_s, 6), "count": len(times), "latency_ms": summary(times)}


def _is_slow(times: Sequence[float]) -> bool:
    return len(times) >= 2 and times[-1] > SLOW_S


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
