"""Measure the latency of calls, after a warm-up.

Rules
1. The latency of a call is the time that a caller measures: from the start of the call until the device has finished it.
2. The first call is reported separately, because it compiles kernels and captures graphs. Timing begins after a warm-up
   of at least `warmup_s` seconds and `MIN_WARMUP_CALLS` calls, including the first. If the first call is slow
   (`SLOW_CALL_S`), it is the whole warm-up.
3. Percentiles are measured values (nearest rank), not interpolations.
4. The functions that are compared are called contenders. All are warmed up before any of them is timed. Then they are timed
   in turns, so that other load on the machine slows all of them alike. If a contender raises Dropped, the others continue.
   Any other error ends the measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MIN_WARMUP_CALLS = 3
#: The smallest and the largest number of timed calls. After a slow call there may be fewer (`SLOW_CALL_S`).
MIN_CALLS, MAX_CALLS = 10, 100_000
#: The number of turns of each contender, if there are several contenders.
TURN_COUNT = 10
#: In seconds. No warm-up follows a first call that takes at least this long. If the second or a later timed call takes
#: longer, the contender makes no more calls.
SLOW_CALL_S = 10.0


@dataclass(frozen=True)
class Budget:
    """The seconds of warm-up and of timing, for one contender at one shape."""

    warmup_s: float
    duration_s: float


@dataclass(frozen=True)
class Latency:
    """Percentiles and mean of the calls' durations, in milliseconds."""

    min: float
    p50: float
    p90: float
    p99: float
    max: float
    mean: float


@dataclass(frozen=True)
class Timing:
    """The seconds of the first call, and the number and latencies of the timed calls."""

    first_s: float
    count: int
    latency_ms: Latency


class Dropped(Exception):
    """A contender cannot be timed. The text of the error is the reason."""


class Contender(Protocol):
    """A function that is timed, in this process or in another. A method may raise Dropped (rule 4)."""

    def time_first_call(self) -> float:
        """Make the first call. Return its duration in seconds."""

    def warm_up(self, seconds: float) -> None:
        """Make calls for at least this number of seconds."""

    def time_turn(self, turn: Turn) -> list[float]:
        """Make the calls of a turn. Return the duration of each call in seconds."""


@dataclass(frozen=True)
class Turn:
    """The length of a turn in seconds, and its smallest and largest number of calls (`least`, `most`).

    With `warms`, the turn begins with a call that is not timed, because another contender has run before.
    """

    seconds: float
    least: int
    most: int
    warms: bool = False


class LocalContender:
    """A contender in this process: the function `call`, and `wait`, which waits for the device.

    An error of either function is raised unchanged, not as Dropped.
    """

    def __init__(self, call: Callable[[], object], wait: Callable[[], object]) -> None:
        self._call = call
        self._wait = wait
        self._timed_count = 0

    def time_first_call(self) -> float:
        return self._time_call()

    def warm_up(self, seconds: float) -> None:
        end, calls = time.perf_counter() + seconds, 1  # `time_first_call` has made one call
        while calls < MIN_WARMUP_CALLS or time.perf_counter() < end:
            self._time_call()
            calls += 1

    def time_turn(self, turn: Turn) -> list[float]:
        if turn.warms:
            self._time_call()
        seconds: list[float] = []
        end = time.perf_counter() + turn.seconds
        while len(seconds) < turn.most and (len(seconds) < turn.least or time.perf_counter() < end):
            seconds.append(self._time_call())
            self._timed_count += 1
            if seconds[-1] > SLOW_CALL_S and self._timed_count >= 2:
                break
        return seconds

    def _time_call(self) -> float:
        started = time.perf_counter()
        self._call()
        self._wait()
        return time.perf_counter() - started


def time_in_turns(contenders: Mapping[str, Contender], budget: Budget) -> dict[str, Timing | Dropped]:
    """Return the timing of each contender by name, or the error that dropped it (rule 4)."""
    first_s: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    dropped: dict[str, Dropped] = {}
    for name, contender in contenders.items():
        try:
            first_s[name] = contender.time_first_call()
            if first_s[name] < SLOW_CALL_S:
                contender.warm_up(budget.warmup_s)
            times[name] = []
        except Dropped as error:
            dropped[name] = error
    turns = TURN_COUNT if len(times) > 1 else 1
    seconds, least, most = budget.duration_s / turns, math.ceil(MIN_CALLS / turns), MAX_CALLS // turns
    for _ in range(turns):
        for name in [name for name in times if not _is_slow(times[name])]:
            last = times[name][-1] if times[name] else first_s[name]
            turn = Turn(seconds, least, most, warms=turns > 1 and last < seconds)
            try:
                times[name] += contenders[name].time_turn(turn)
            except Dropped as error:
                dropped[name] = error
                del times[name]
    return {name: dropped[name] if name in dropped else _timing(first_s[name], times[name]) for name in contenders}


def _timing(first_s: float, times: Sequence[float]) -> Timing:
    return Timing(round(first_s, 6), len(times), latency(times))


def _is_slow(times: Sequence[float]) -> bool:
    return len(times) >= 2 and times[-1] > SLOW_CALL_S


def latency(times_s: Sequence[float]) -> Latency:
    """Return percentiles and mean, in milliseconds."""
    ordered = sorted(times_s)
    percentiles = [percentile(ordered, percent) for percent in (50, 90, 99)]
    values = [ordered[0], *percentiles, ordered[-1], sum(ordered) / len(ordered)]
    return Latency(*(round(seconds * 1e3, 6) for seconds in values))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value v such that at least `percent` % of all values are <= v (nearest rank).

    `ordered` is sorted and not empty."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
