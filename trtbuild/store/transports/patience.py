"""Limits the time that a remote may cost a build, by retries with short pauses and a circuit breaker.

Rules
1. Only a RemoteDown with `is_transient` (a retry may help) is retried, with `MAX_ATTEMPTS` attempts in all. The pause
   before a retry is the time in the remote's Retry-After header. If that is longer than `MAX_WAIT_S`, the call fails at
   once. Without the header, the pause is a random time, whose limit grows.
2. When the circuit is open, the remote is not used. A call *fails* if it raises RemoteDown after its retries. The circuit
   opens, for the rest of the run, when
   a. a call fails before the remote has ever answered;
   b. a call fails with a permanent error: a time-out, an unknown host, an answer that is not HTTP;
   c. `MAX_FAILED_CALLS` calls fail in a row (no call between them got an answer); or the calls that failed in a row took a
      quarter of `patience_s` together; or all failed calls of the run took five times `patience_s` together;
   d. `MAX_LIES` answers have wrong content;
   e. successful `timed` calls (for which a plan waits) have delayed the run by five times `patience_s` together. The delay
      of a call is its time beyond an eighth of `patience_s`. There is no delay if the remote moved `STEADY_BYTES_PER_S`
      bytes a second during the call.
   A refusal (RemoteRefused) opens the circuit for one direction only, reading or writing. RemoteFull does not open it.
3. When the circuit is open, every call raises RemoteDown at once, even a call that waits for a retry. The transport is
   closed, which ends the calls of other threads. After a refusal, only calls in the refused direction fail. They raise
   RemoteRefused, and the transport stays usable.
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
from trtbuild.store.transports.faults import SLOW_LINE_HINT
from trtbuild.store.transports.report import RemoteReport, Trouble
from trtbuild.store.transports.transport import Transport

MAX_ATTEMPTS = 3
MAX_WAIT_S = 2.0
MAX_FAILED_CALLS = 3
MAX_LIES = 3
#: See rule 2e.
STEADY_BYTES_PER_S = 64 << 10
#: The limit of the first random pause, in seconds. The limit of each later pause is four times the limit before it.
_MAX_FIRST_PAUSE_S = 0.2

Direction = Literal["read", "write"]
T = TypeVar("T")


@dataclass
class _Counts:
    """The numbers of `RemoteReport`."""

    requests: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    retries: int = 0
    failures: int = 0
    skipped: int = 0

    @property
    def bytes_moved(self) -> int:
        return self.bytes_down + self.bytes_up


@dataclass
class _LostTime:
    """The time that calls have cost. The time of simultaneous calls counts once."""

    #: Calls and seconds since the last answer.
    failed_calls: int = 0
    since_answer_s: float = 0.0
    #: Seconds in the whole run.
    total_s: float = 0.0
    last_end: float = field(default=float("-inf"))

    def add(self, start: float, end: float) -> None:
        """Add the time of one call, from `start` to `end` (seconds of the same clock)."""
        lost_s = max(0.0, end - max(start, self.last_end))
        self.last_end = max(self.last_end, end)
        self.failed_calls += 1
        self.since_answer_s += lost_s
        self.total_s += lost_s


class PatientTransport(Transport):
    """Wraps a `Transport`, and applies the rules above. `clock` and `sleep` use seconds. `jitter` returns numbers from 0 to
    1."""

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
        self.decides_races = transport.decides_races
        self._transport = transport
        self._patience_s = patience_s
        self._clock = clock
        self._circuit_opened = threading.Event()
        self._sleep = sleep or self._circuit_opened.wait
        self._jitter = jitter
        self._lock = threading.Lock()
        self._first_call_lock = threading.Lock()
        self._has_answered = False
        #: Why the circuit is open; None if it is not open.
        self._open_reason: str | None = None
        self._refusals: dict[Direction, RemoteRefused] = {}
        #: The time of the calls that failed (rule 2c), and the delays of successful calls (rule 2e).
        self._losses = _LostTime()
        self._delays = _LostTime()
        self._lies = 0
        self._counts = _Counts()
        self._troubles: dict[str, Trouble] = {}

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        start, moved_before = self._clock(), self._counts.bytes_moved
        data = self._call("read", lambda: self._transport.get(kind, name, limit, timed=timed))
        with self._lock:
            self._counts.bytes_down += len(data or b"")
            if timed:
                self._count_delay(start, self._counts.bytes_moved - moved_before)
        self._close_if_open()
        return data

    def has(self, kind: Kind, name: str) -> bool:
        return self._call("read", lambda: self._transport.has(kind, name))

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        is_written = self._call("write", lambda: self._transport.put(kind, name, data, once=once))
        self.decides_races = self._transport.decides_races  # a transport may learn from a write that it does not
        if is_written:
            with self._lock:
                self._counts.bytes_up += memoryview(data).nbytes
        return is_written

    def close(self) -> None:
        self._transport.close()

    def is_usable(self, direction: Direction) -> bool:
        """Whether calls in this direction are made (rule 2)."""
        return self._open_reason is None and direction not in self._refusals

    def count_fault(self, fault: RemoteFault) -> None:
        """Count a fault that the caller found in an entry (rule 2d for RemoteLied)."""
        with self._lock:
            self._counts.failures += 1
            self._add_trouble(fault)
            if isinstance(fault, RemoteLied):
                self._count_lie()
        self._close_if_open()

    def report(self) -> RemoteReport:
        """The report of the run so far."""
        with self._lock:
            troubles = tuple(self._troubles.values())
            refused = next((fault.text for fault in self._refusals.values()), None)
            warnings: list[str] = [*self._transport.warnings, *map(str, troubles)]
            if self._open_reason is not None:
                warnings.append(f"{self.place} was not used for the rest of the run")
            return RemoteReport(
                given_up=self._open_reason or refused, troubles=troubles, warnings=tuple(warnings), **vars(self._counts)
            )

    def _call(self, direction: Direction, attempt: Callable[[], T]) -> T:
        self._check_circuit(direction)
        if not self._has_answered:
            with self._first_call_lock:
                self._check_circuit(direction)
                if not self._has_answered:
                    return self._call_with_retries(direction, attempt)
        return self._call_with_retries(direction, attempt)

    def _call_with_retries(self, direction: Direction, attempt: Callable[[], T]) -> T:
        start = self._clock()
        for number in range(1, MAX_ATTEMPTS + 1):
            with self._lock:
                self._counts.requests += 1
            try:
                result = attempt()
            except RemoteDown as fault:
                pause_s = self._pause_s(fault, number)
                if self._open_reason is None and pause_s is not None:
                    with self._lock:
                        self._counts.retries += 1
                    self._sleep(pause_s)
                if self._open_reason is not None or pause_s is None:  # the circuit may have opened during the pause
                    self._note_fault(direction, fault, start)
                    raise
            except RemoteFault as fault:
                self._note_fault(direction, fault, start)
                raise
            else:
                with self._lock:
                    self._note_answer()
                return result
        raise AssertionError  # the last attempt has no pause

    def _pause_s(self, fault: RemoteDown, number: int) -> float | None:
        """Seconds to wait before the next attempt, or None if there is no other attempt."""
        if not fault.is_transient or number == MAX_ATTEMPTS:
            return None
        if fault.retry_after_s is None:
            return self._jitter() * _MAX_FIRST_PAUSE_S * 4.0 ** (number - 1)
        return fault.retry_after_s if fault.retry_after_s <= MAX_WAIT_S else None

    def _note_fault(self, direction: Direction, fault: RemoteFault, start: float) -> None:
        with self._lock:
            self._counts.failures += 1
            if self._open_reason is not None:
                return  # rule 3 ended this call
            self._add_trouble(fault)
            if isinstance(fault, RemoteDown):
                self._losses.add(start, self._clock())
                if not self._has_answered or not fault.is_transient or self._lost_too_much():
                    self._open_reason = fault.text
            else:
                self._note_answer()
                if isinstance(fault, RemoteRefused):
                    self._refusals.setdefault(direction, fault)
                elif isinstance(fault, RemoteLied):
                    self._count_lie()
        self._close_if_open()

    def _lost_too_much(self) -> bool:
        losses = self._losses
        return (
            losses.failed_calls >= MAX_FAILED_CALLS
            or losses.since_answer_s >= self._patience_s / 4
            or losses.total_s >= 5 * self._patience_s
        )

    def _count_delay(self, start: float, moved: int) -> None:
        """Apply rule 2e to one call. `moved` is the number of bytes that the remote moved during the call."""
        end = self._clock()
        if moved < STEADY_BYTES_PER_S * (end - start):
            self._delays.add(start + self._patience_s / 8, end)
        if self._delays.total_s >= 5 * self._patience_s and self._open_reason is None:
            slow = RemoteDown(
                f"{self.place} is slow: builds waited {self._delays.total_s:.2g} s for its entries",
                hint=SLOW_LINE_HINT,
            )
            self._counts.failures += 1
            self._add_trouble(slow)
            self._open_reason = slow.text

    def _count_lie(self) -> None:
        self._lies += 1
        if self._lies >= MAX_LIES and self._open_reason is None:
            self._open_reason = f"{self.place} sent wrong content {self._lies} times"

    def _note_answer(self) -> None:
        self._has_answered = True
        self._losses.failed_calls = 0
        self._losses.since_answer_s = 0.0

    def _check_circuit(self, direction: Direction) -> None:
        """Raise the error of an open circuit (rule 3)."""
        if self.is_usable(direction):
            return
        with self._lock:
            self._counts.skipped += 1
        if self._open_reason is not None:
            raise RemoteDown(f"{self.place} is not used for the rest of this run: {self._open_reason}")
        refused = self._refusals[direction]
        raise RemoteRefused(refused.text, hint=refused.hint)

    def _add_trouble(self, fault: RemoteFault) -> None:
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
        if self._open_reason is not None and not self._circuit_opened.is_set():
            self._circuit_opened.set()
            with contextlib.suppress(Exception):  # the remote is not used again
                self._transport.close()
