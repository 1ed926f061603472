"""Checks whether bytes move fast enough. Only silence ends a transfer that has no total limit.

Rules
1. Time is measured in windows. The first window begins with the attempt: connecting, the request and the head of the answer
   share its `patience_s`. The second window ends when the first would have ended, but lasts at least a fifth of the
   patience. So a remote that answers at the last moment and then sends too slowly costs 1.2 times the patience. Later
   windows last `patience_s`.
2. A window with fewer than `SLOWEST` bytes a second counts as silence, except in the case of rule 3.
3. Connections that share a slow line share its speed. While all connections together move `SLOWEST` bytes a second, a
   single connection may wait. Without any byte it may wait for at most `QUEUED` times the patience.
4. A transfer with a total limit (`finish_within`) ends at that limit, even if it is fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trtbuild.store.transports.transport import SLOWEST

#: See rule 3.
QUEUED = 8


class Silence(Exception):
    """Nothing, or too little, was received for `seconds`."""

    def __init__(self, seconds: float, some: bool) -> None:
        super().__init__(f"{'hardly anything' if some else 'nothing'} came for {seconds:.2g} s")


class Overdue(Silence):
    """A transfer took longer than its total limit of `seconds` (rule 4)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, some=True)
        self.seconds = seconds


@dataclass
class Flow:
    """The number of bytes of all connections to one remote. It has no lock, because a lost update does not matter."""

    moved: int = 0


class Pace:
    """The windows of one connection. `clock` returns seconds since any moment."""

    def __init__(self, flow: Flow, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._flow = flow
        self.patience_s = patience_s
        self._clock = clock
        self._whole_s, self._overdue = 0.0, float("inf")
        self.begin()

    def finish_within(self, whole_s: float | None) -> None:
        """Limit the time from now until the next call of this method to `whole_s` seconds. With None, remove the limit."""
        self._whole_s = whole_s or 0.0
        self._overdue = float("inf") if whole_s is None else self._clock() + whole_s

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._begun = self._last_byte = self._clock()
        self._open(self._begun, self._begun + self.patience_s)

    def head_came(self) -> None:
        """Note that the head of the answer is complete."""
        now = self._clock()
        self._open(now, max(self._begun + self.patience_s, now + self.patience_s / 5))

    def allow(self, extra_s: float) -> None:
        """Begin a new window, which is longer by `extra_s`."""
        now = self._clock()
        self._open(now, now + self.patience_s + extra_s)

    def came(self, size: int) -> None:
        """Count received bytes."""
        if size:
            self._some = True
        self.moved(size)

    def moved(self, size: int) -> None:
        """Count bytes that were received or sent."""
        self._flow.moved += size
        self._own += size
        if size:
            self._last_byte = self._clock()

    def left_s(self) -> float:
        """The number of seconds, more than 0, for which one call may block. Raises Silence, Overdue."""
        now = self._clock()
        if now >= self._overdue:
            raise Overdue(self._whole_s)
        if now >= self._end:
            self._end_window(now)
        return max(min(self._end, self._overdue) - now, 0.001)

    def _open(self, now: float, end: float) -> None:
        self._start, self._end = now, end
        self._own = 0
        self._some = False
        self._all_before = self._flow.moved

    def _end_window(self, now: float) -> None:
        length_s = now - self._start
        enough = SLOWEST * length_s
        queued = now - self._last_byte < QUEUED * self.patience_s and self._flow.moved - self._all_before >= enough
        if self._own < enough and not queued:
            raise Silence(length_s, some=self._some)
        self._open(now, now + self.patience_s)
