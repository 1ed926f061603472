"""Retries, and a circuit breaker for one remote and one run: they limit how much time a remote may cost a build.

Rules
1. Only a RemoteDown with `may_pass` is retried, with `ATTEMPTS` attempts in all. The wait before an attempt is a random
   time that grows, or the time in the remote's Retry-After header. If that time is longer than `LONGEST_WAIT_S`, the call
   fails at once.
2. The circuit opens, for the rest of the run, when
   a. a call fails (after its retries) before the remote has ever answered;
   b. a call fails with a permanent error: a time-out, an unknown host, an answer that is not HTTP;
   c. `IN_A_ROW` calls fail without an answer between them, or failed calls without an answer between them together took a
      quarter of the patience; or all failed calls of the run together took five times the patience;
   d. `LIES` answers had wrong content;
   e. successful `timed` calls together delayed the run by five times the patience. The delay of a call is its time beyond
      an eighth of the patience. A call during which the remote moved `STEADY` bytes a second has no delay.
   A refusal (RemoteRefused) opens the circuit for one direction only, reading or writing. RemoteFull does not open it.
3. When the circuit is open, every call raises RemoteDown at once, even calls that wait for a retry. If a RemoteRefused
   opened the circuit, calls raise RemoteRefused. The transport is closed, which ends the calls of other threads.
4. Until the remote has answered once, one call is made at a time, and the other calls wait for its result. So an
   unreachable remote costs one time-out, however many threads call it.
5. For each kind of fault, the report contains the text of the first fault and the number of faults.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from trtbuild.errors import RemoteDown, RemoteFault, RemoteFull, RemoteLied, RemoteRefused
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.faults import SLOW_LINE
from trtbuild.store.transports.report import RemoteReport, Trouble
from trtbuild.store.transports.transport import Transport

ATTEMPTS = 3
LONGEST_WAIT_S = 2.0
IN_A_ROW = 3
LIES = 3
#: Bytes a second from which a timed call does not count as delayed (rule 2e).
STEADY = 64 << 10
#: The longest first pause, in seconds. Each later pause may be four times as long as the one before.
_PAUSE_S = 0.2

Direction = Literal["read", "write"]
T = TypeVar("T")


@dataclass
class _Counts:
    requests: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    retries: int = 0
    failures: int = 0
    skipped: int = 0

    @property
    def moved(self) -> int:
        """Bytes in both directions."""
        return self.bytes_down + self.bytes_up


@dataclass
class _Losses:
    """The time that calls have cost, since the last answer and in the whole run. Simultaneous calls count once."""

    in_a_row: int = 0
    lately_s: float = 0.0
    altogether_s: float = 0.0
    until: float = field(default=float("-inf"))

    def add(self, begun: float, ended: float) -> None:
        lost_s = max(0.0, ended - max(begun, self.until))
        self.until = max(self.until, ended)
        self.in_a_row += 1
        self.lately_s += lost_s
        self.altogether_s += lost_s


class Patient(Transport):
    """A `Transport` that wraps another transport. `clock` and `sleep` use seconds; `jitter` returns numbers from 0 to 1."""

    def __init__(
        self,
        transport: Transport,
        patience_s: float = 4.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.place = transport.place
        self.decides = transport.decides
        self._transport = transport
        self._patience_s = patience_s
        self._clock = clock
        self._opened = threading.Event()
        self._sleep = sleep or self._opened.wait
        self._jitter = jitter
        self._lock = threading.Lock()
        self._first = threading.Lock()
        self._answered = False
        self._open: str | None = None
        self._refused: dict[Direction, RemoteRefused] = {}
        self._losses = _Losses()
        self._delays = _Losses()
        self._lies = 0
        self._counts = _Counts()
        self._troubles: dict[str, Trouble] = {}

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        begun, before = self._clock(), self._counts.moved
        data = self._call("read", lambda: self._transport.get(kind, name, limit, timed=timed))
        with self._lock:
            self._counts.bytes_down += len(data or b"")
            if timed:
                self._count_delay(begun, self._counts.moved - before)
        self._close_if_open()
        return data

    def has(self, kind: Kind, name: str) -> bool:
        return self._call("read", lambda: self._transport.has(kind, name))

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        new = self._call("write", lambda: self._transport.put(kind, name, data, once=once))
        if new:
            with self._lock:
                self._counts.bytes_up += memoryview(data).nbytes
        return new

    def close(self) -> None:
        self._transport.close()

    def usable(self, direction: Direction) -> bool:
        """Whether the circuit is closed in this direction, so that calls are made."""
        return self._open is None and direction not in self._refused

    def blame(self, fault: RemoteFault) -> None:
        """Count a fault that the caller found: bytes that do not have the digest in their name (RemoteLied)."""
        with self._lock:
            self._counts.failures += 1
            self._remember(fault)
            if isinstance(fault, RemoteLied):
                self._count_lie()
        self._close_if_open()

    def report(self) -> RemoteReport:
        """The report of the run so far."""
        with self._lock:
            troubles = tuple(self._troubles.values())
            refused = next((fault.text for fault in self._refused.values()), None)
            warnings: list[str] = [*self._transport.warnings, *map(str, troubles)]
            if self._open is not None:
                warnings.append(f"{self.place} was not used for the rest of the run")
            return RemoteReport(
                given_up=self._open or refused, troubles=troubles, warnings=tuple(warnings), **vars(self._counts)
            )

    def _call(self, direction: Direction, attempt: Callable[[], T]) -> T:
        self._check(direction)
        if not self._answered:
            with self._first:
                self._check(direction)
                if not self._answered:
                    return self._call_with_retries(direction, attempt)
        return self._call_with_retries(direction, attempt)

    def _call_with_retries(self, direction: Direction, attempt: Callable[[], T]) -> T:
        begun = self._clock()
        for number in range(1, ATTEMPTS + 1):
            with self._lock:
                self._counts.requests += 1
            try:
                result = attempt()
            except RemoteDown as fault:
                pause_s = self._pause_s(fault, number)
                if self._open is None and pause_s is not None:
                    with self._lock:
                        self._counts.retries += 1
                    self._sleep(pause_s)
                if self._open is not None or pause_s is None:
                    self._failed(direction, fault, begun)
                    raise
            except RemoteFault as fault:
                self._failed(direction, fault, begun)
                raise
            else:
                with self._lock:
                    self._note_answer()
                return result
        raise AssertionError  # the last attempt has no pause

    def _pause_s(self, fault: RemoteDown, number: int) -> float | None:
        """Seconds to wait before the next attempt, or None if there is no other attempt."""
        if not fault.may_pass or number == ATTEMPTS:
            return None
        if fault.retry_after_s is None:
            return self._jitter() * _PAUSE_S * 4.0 ** (number - 1)
        return fault.retry_after_s if fault.retry_after_s <= LONGEST_WAIT_S else None

    def _failed(self, direction: Direction, fault: RemoteFault, begun: float) -> None:
        with self._lock:
            self._counts.failures += 1
            if self._open is not None:
                return  # rule 3 ended this call
            self._remember(fault)
            if isinstance(fault, RemoteDown):
                self._losses.add(begun, self._clock())
                if not self._answered or not fault.may_pass or self._lost_too_much():
                    self._open = fault.text
            else:
                self._note_answer()
                if isinstance(fault, RemoteRefused):
                    self._refused.setdefault(direction, fault)
                elif isinstance(fault, RemoteLied):
                    self._count_lie()
        self._close_if_open()

    def _lost_too_much(self) -> bool:
        losses = self._losses
        return (
            losses.in_a_row >= IN_A_ROW
            or losses.lately_s >= self._patience_s / 4
            or losses.altogether_s >= 5 * self._patience_s
        )

    def _count_delay(self, begun: float, moved: int) -> None:
        """Apply rule 2e to one call. `moved` is the number of bytes that were transferred during the call."""
        ended = self._clock()
        if moved < STEADY * (ended - begun):
            self._delays.add(begun + self._patience_s / 8, ended)
        if self._delays.altogether_s >= 5 * self._patience_s and self._open is None:
            slow = RemoteDown(
                f"{self.place} is slow: builds waited {self._delays.altogether_s:.2g} s for its entries",
                hint=SLOW_LINE,
            )
            self._counts.failures += 1
            self._remember(slow)
            self._open = slow.text

    def _count_lie(self) -> None:
        self._lies += 1
        if self._lies >= LIES and self._open is None:
            self._open = f"{self.place} sent wrong content {self._lies} times"

    def _note_answer(self) -> None:
        self._answered = True
        self._losses.in_a_row = 0
        self._losses.lately_s = 0.0

    def _check(self, direction: Direction) -> None:
        """Raise the error of an open circuit (rule 3)."""
        if self.usable(direction):
            return
        with self._lock:
            self._counts.skipped += 1
        if self._open is not None:
            raise RemoteDown(f"{self.place} is not used for the rest of this run: {self._open}")
        refused = self._refused[direction]
        raise RemoteRefused(refused.text, hint=refused.hint)

    def _remember(self, fault: RemoteFault) -> None:
        kind: Literal["down", "refused", "full", "lied"] = "down"
        if isinstance(fault, RemoteRefused):
            kind = "refused"
        elif isinstance(fault, RemoteFull):
            kind = "full"
        elif isinstance(fault, RemoteLied):
            kind = "lied"
        known = self._troubles.get(kind) or Trouble(kind, fault.text, fault.hint, 0)
        self._troubles[kind] = Trouble(kind, known.text, known.hint, known.count + 1)

    def _close_if_open(self) -> None:
        if self._open is not None and not self._opened.is_set():
            self._opened.set()
            with contextlib.suppress(Exception):  # the remote is not used again, so the error does not matter
                self._transport.close()
