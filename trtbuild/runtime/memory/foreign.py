"""Arrays that came from elsewhere, kept until the GPU has read them.

Their allocators know nothing of our stream: freed too early, their memory is somebody else's while a kernel reads it.

Rules
1. What a thread adopts belongs to its next finished call. Then an event is recorded behind that call's work, and the arrays
   are kept until it has happened.
2. Nobody waits: events are looked at when something else is adopted, oldest first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Happening(Protocol):
    """A recorded event."""

    def query(self) -> bool:
        """Whether all work before it has been done."""
        ...


class Foreign:
    """What was adopted and may still be read. `record` records an event on a stream."""

    def __init__(self, record: Callable[[int], Happening]) -> None:
        self._record = record
        self._adopting = threading.local()
        self._read: deque[tuple[Happening, list[object]]] = deque()
        self._lock = threading.Lock()

    def adopted(self, array: object) -> None:
        """`array` belongs to this thread's next call."""
        fresh = getattr(self._adopting, "arrays", None)
        if fresh is None:
            fresh = self._adopting.arrays = []
        fresh.append(array)
        self.release()

    def called(self, stream: int) -> None:
        """This thread's call is on `stream`, to its end."""
        fresh = getattr(self._adopting, "arrays", None)
        if not fresh:
            return
        self._adopting.arrays = None
        entry = (self._record(stream), fresh)
        with self._lock:
            self._read.append(entry)

    def release(self) -> None:
        """Let go of what has been read."""
        while self._read:
            with self._lock:
                if not self._read or not self._read[0][0].query():
                    return
                entry = self._read.popleft()
            del entry  # outside the lock: what the last reference does is the exporter's business
