"""Arrays of other libraries: find reversed ones, and keep adopted ones until the GPU has read them.

The allocator of another library does not know our stream. If an array is freed too early, its memory is used again while a
kernel still reads it.

Rules
1. An array that a thread adopts belongs to the thread's next call. When this call has enqueued its work, an event is
   recorded after the work. The array is kept until the event is done.
2. No thread waits: events are queried when another array is adopted, oldest first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


def has_negative_strides(value: Any) -> bool:
    """Whether an array of NumPy or CuPy is reversed, such as ``image[..., ::-1]``. `torch.from_dlpack` ends the process
    for such an array, because torch has no negative strides."""
    strides = getattr(value, "strides", None)
    return isinstance(strides, tuple) and any(step < 0 for step in strides)


class RecordedEvent(Protocol):
    """A recorded CUDA event."""

    def query(self) -> bool:
        """Whether all earlier work on the event's stream has finished."""
        ...


class AdoptedArrays:
    """Adopted arrays that the GPU may still read. `record(stream)` records an event after the current work of a stream."""

    def __init__(self, record: Callable[[int], RecordedEvent]) -> None:
        self._record = record
        self._arrays_of_thread = threading.local()
        #: For each call with adopted arrays: the event at the end of its work, and the arrays. The oldest call is first.
        self._arrays_in_use: deque[tuple[RecordedEvent, list[object]]] = deque()
        self._lock = threading.Lock()

    def keep_for_call(self, array: object) -> None:
        """Keep `array` until this thread's next call has finished."""
        arrays = getattr(self._arrays_of_thread, "arrays", None)
        if arrays is None:
            arrays = self._arrays_of_thread.arrays = []
        arrays.append(array)
        self.release_finished()

    def record_call(self, stream: int) -> None:
        """Record an event on `stream`, after the work of this thread's call (rule 1)."""
        arrays = getattr(self._arrays_of_thread, "arrays", None)
        if not arrays:
            return
        self._arrays_of_thread.arrays = None
        entry = (self._record(stream), arrays)
        with self._lock:
            self._arrays_in_use.append(entry)

    def release_finished(self) -> None:
        """Release the arrays of calls that have finished."""
        while self._arrays_in_use:
            with self._lock:
                if not self._arrays_in_use:
                    return
                oldest_event = self._arrays_in_use[0][0]
                if not oldest_event.query():
                    return
                entry = self._arrays_in_use.popleft()
            del entry  # outside the lock, because this may run code of the other library
