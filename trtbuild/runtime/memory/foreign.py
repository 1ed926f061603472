"""Keep adopted arrays until the GPU has read them.

Their allocators do not know our stream. If an array is freed too early, its memory is used again while a kernel still
reads it.

Rules
1. An array that a thread adopts belongs to the thread's next call. When this call has enqueued all its work, an event is
   recorded after the work. The arrays are kept until the event is done.
2. No thread waits: events are queried when another array is adopted, oldest first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class RecordedEvent(Protocol):
    """A recorded event."""

    def query(self) -> bool:
        """Whether all work before it has finished."""
        ...


class AdoptedArrays:
    """Adopted arrays that the GPU may still read. `record` records an event on a stream."""

    def __init__(self, record: Callable[[int], RecordedEvent]) -> None:
        self._record = record
        self._adopting = threading.local()
        self._read: deque[tuple[RecordedEvent, list[object]]] = deque()
        self._lock = threading.Lock()

    def adopted(self, array: object) -> None:
        """Keep `array` for this thread's next call."""
        arrays = getattr(self._adopting, "arrays", None)
        if arrays is None:
            arrays = self._adopting.arrays = []
        arrays.append(array)
        self.release()

    def called(self, stream: int) -> None:
        """Note that all work of this thread's call is on `stream`."""
        arrays = getattr(self._adopting, "arrays", None)
        if not arrays:
            return
        self._adopting.arrays = None
        entry = (self._record(stream), arrays)
        with self._lock:
            self._read.append(entry)

    def release(self) -> None:
        """Release the arrays that have been read."""
        while self._read:
            with self._lock:
                if not self._read or not self._read[0][0].query():
                    return
                entry = self._read.popleft()
            del entry  # outside the lock, because deleting the last reference runs the exporter's code
