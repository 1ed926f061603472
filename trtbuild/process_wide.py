"""Change state that all threads of a process share, such as a function of torch, and restore it.

    def _use_float32() -> Callable[[], object]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        return lambda: torch.set_default_dtype(before)

    float32 = ProcessWideChange(_use_float32)
    with float32:
        ...

Several threads may be in such blocks at the same time, and blocks may be nested.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class ProcessWideChange:
    """A change that lasts while at least one ``with`` block is open.

    `change` makes the change, and returns the function that undoes it. The first block calls `change`. When the last open
    block ends, it calls that function.
    """

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._change = change
        self._undo: Callable[[], object] | None = None
        self._open_blocks = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._open_blocks == 0:
                self._undo = self._change()
            self._open_blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._open_blocks -= 1
            if self._open_blocks == 0 and self._undo is not None:
                self._undo()
                self._undo = None
