"""Ends transfers that are too slow, window by window.

Rules
1. Time is divided into windows. The first window covers connecting, the request and the head of the answer, and lasts
   `patience_s`. The second window, for the body, ends when the first one would end, but lasts at least a fifth of
   `patience_s`. So a remote that answers at the last moment and then sends too slowly costs 1.2 times `patience_s`. Later
   windows last `patience_s`. The window after an upload may be longer (`begin_longer_window`).
2. A window with fewer than `MIN_BYTES_PER_S` bytes a second counts as silence, except in the case of rule 3.
3. The connections to a remote share a line. If together they move `MIN_BYTES_PER_S` bytes a second, a single
   connection may be slower. But it may wait for a byte for at most `MAX_QUEUE_FACTOR` times `patience_s`.
4. A transfer with a total limit (`limit_total_time`) ends at that limit, even if it is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trtbuild.store.transports.transport import MIN_BYTES_PER_S

#: The longest wait without any byte while other connections use the line, as a multiple of `patience_s` (rule 3).
MAX_QUEUE_FACTOR = 8


class Silence(Exception):
    """In `seconds` seconds, too few bytes were received or sent."""

    def __init__(self, seconds: float, received_any: bool) -> None:
        super().__init__(f"{'hardly anything' if received_any else 'nothing'} came for {seconds:.2g} s")


class Overdue(Silence):
    """A transfer took longer than its total limit of `seconds` (rule 4)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, received_any=True)
        self.seconds = seconds


@dataclass
class Traffic:
    """The number of bytes that all connections to a remote have moved. It has no lock, because a lost update does not
    matter."""

    bytes_moved: int = 0


class Pace:
    """The windows of one connection. `clock` returns seconds, from any start."""

    def __init__(self, traffic: Traffic, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._traffic = traffic
        self.patience_s = patience_s
        self._clock = clock
        self._total_s, self._deadline = 0.0, float("inf")
        self.begin_attempt()

    def limit_total_time(self, total_s: float | None) -> None:
        """Limit the time from now until the next call of this method to `total_s` seconds. With None, remove the limit."""
        self._total_s = total_s or 0.0
        self._deadline = float("inf") if total_s is None else self._clock() + total_s

    def begin_attempt(self) -> None:
        """Begin a request, and its first window."""
        self._attempt_start = self._last_byte_time = self._clock()
        self._begin_window(self._attempt_start, self._attempt_start + self.patience_s)

    def note_head(self) -> None:
        """Begin the window for the body: the head of the answer is complete."""
        now = self._clock()
        self._begin_window(now, max(self._attempt_start + self.patience_s, now + self.patience_s / 5))

    def begin_longer_window(self, extra_s: float) -> None:
        """Begin a new window, of `patience_s` plus `extra_s` seconds."""
        now = self._clock()
        self._begin_window(now, now + self.patience_s + extra_s)

    def count_received(self, size: int) -> None:
        if size:
            self._received_any = True
        self.count_moved(size)

    def count_moved(self, size: int) -> None:  # received or sent
        self._traffic.bytes_moved += size
        self._own_bytes += size
        if size:
            self._last_byte_time = self._clock()

    def remaining_s(self) -> float:
        """The number of seconds, more than 0, for which one call may block. Raises Silence, Overdue."""
        now = self._clock()
        if now >= self._deadline:
            raise Overdue(self._total_s)
        if now >= self._end:
            self._end_window(now)
        return max(min(self._end, self._deadline) - now, 0.001)

    def _begin_window(self, now: float, end: float) -> None:
        self._start, self._end = now, end
        self._own_bytes = 0
        self._received_any = False
        self._traffic_before = self._traffic.bytes_moved

    def _end_window(self, now: float) -> None:
        length_s = now - self._start
        min_bytes = MIN_BYTES_PER_S * length_s
        is_queued = (
            now - self._last_byte_time < MAX_QUEUE_FACTOR * self.patience_s
            and self._traffic.bytes_moved - self._traffic_before >= min_bytes
        )
        if self._own_bytes < min_bytes and not is_queued:
            raise Silence(length_s, received_any=self._received_any)
        self._begin_window(now, now + self.patience_s)
