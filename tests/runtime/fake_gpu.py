"""A fake GPU in host memory. By default, the work on a stream runs only when a caller waits for the stream.

So a test fails if memory is freed or reused too early, because the work that reads it has not run yet. Behaviour that CUDA
leaves undefined raises `Misuse`.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: The handle of CUDA's legacy default stream. Its other handle is 1 (``CU_STREAM_LEGACY``).
LEGACY = 0
#: The value of bytes that were not written, or that `FakeGpu.free` freed. `free_on` keeps the bytes of a block.
_POISON = 0xCD


class Misuse(AssertionError):
    """A use whose behaviour is undefined on a GPU."""


@dataclass
class _Stream:
    #: Whether the stream is ordered with the legacy default stream.
    blocking: bool
    #: All work that was enqueued. The first `done` entries have run.
    works: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0


@dataclass
class _Event:
    stream: int
    position: int


class FakeGpu:
    """The devices of one machine. With `runs_late`, work runs as late as possible, otherwise immediately."""

    def __init__(self, *, runs_late: bool = True, devices: int = 1) -> None:
        self.runs_late = runs_late
        self.devices = devices
        self.streams: dict[int, _Stream] = {LEGACY: _Stream(blocking=True)}
        self.blocks: dict[int, Any] = {}
        self.allocations = 0  # the number of new blocks, without reused blocks
        #: The alignment that kernels need.
        self.alignment = 256
        self.lock = threading.RLock()
        #: The workspaces that enqueued work uses: (address, size, stream, position).
        self.workspaces: list[tuple[int, int, int, int]] = []
        self.captures: dict[int, list[Callable[[], None]]] = {}
        #: (size, stream) → addresses of freed blocks, which `allocate` reuses.
        self._idle: dict[tuple[int, int | None], list[int]] = {}
        #: Address of a freed block → the block, and the stream and position of the work that may still use it.
        self._freed: dict[int, tuple[Any, int, int]] = {}
        self._numbers = itertools.count(4096)
        self._current = threading.local()

    # -- devices

    def current(self) -> int | None:
        """Return the calling thread's current device."""
        return getattr(self._current, "stack", [None])[-1]

    def push_device(self, ordinal: int) -> None:
        self._current.stack = [*getattr(self._current, "stack", [None]), ordinal]

    def pop_device(self) -> None:
        self._current.stack.pop()

    # -- memory

    def allocate(self, size_bytes: int, stream: int | None = None) -> int:
        """Return the address of a block, aligned to 256 bytes and not to 512. As in a pool, the block of this size that was
        freed last on `stream` is reused."""
        with self.lock:
            idle = self._idle.get((max(size_bytes, 1), stream))
            if idle:
                address = idle.pop()
                self.blocks[address] = self._freed.pop(address)[0]
                return address
            self.allocations += 1
            raw = np.full(size_bytes + 1024, _POISON, np.uint8)
            offset = -raw.ctypes.data % 512 + 256
            block = raw[offset : offset + max(size_bytes, 1)]
            self.blocks[block.ctypes.data] = block
            return int(block.ctypes.data)

    def free(self, address: int) -> None:
        """Free the block immediately."""
        with self.lock:
            block = self.blocks.pop(address, None)
            if block is None:
                raise Misuse("memory is freed that is not allocated")
            block[:] = _POISON

    def free_on(self, address: int, stream: int) -> None:
        """Free the block after the present work on `stream`. Later work on `stream` can reuse the block."""
        with self.lock:
            block = self.blocks.pop(address, None)
            if block is None:
                raise Misuse("memory is freed that is not allocated")
            self._freed[address] = block, stream, self.push(stream, _nothing)
            self._idle.setdefault((len(block), stream), []).append(address)

    def check(self, address: int, size_bytes: int, what: str) -> None:
        """Raise Misuse unless all bytes of the range are allocated."""
        with self.lock:
            for start, block in self.blocks.items():
                if start <= address and address + size_bytes <= start + len(block):
                    return
            for start, (block, stream, position) in self._freed.items():
                if start <= address and address + size_bytes <= start + len(block) and self.pending(stream, position):
                    return  # the block is freed only after the work that calls this method
        raise Misuse(f"{what} is not in allocated memory")

    def write(self, address: int, data: Any) -> None:
        data = np.ascontiguousarray(data)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        data = np.empty(shape, dtype)
        ctypes.memmove(data.ctypes.data, address, data.nbytes)
        return data

    # -- streams

    def new_stream(self, *, blocking: bool) -> int:
        with self.lock:
            handle = next(self._numbers)
            self.streams[handle] = _Stream(blocking)
            return handle

    def stream(self) -> int:
        """Return the first stream except the legacy stream. If there is no such stream, create one."""
        if len(self.streams) == 1:
            self.new_stream(blocking=False)
        return next(handle for handle in self.streams if handle != LEGACY)

    def push(self, stream: int, work: Callable[[], None]) -> int:
        """Enqueue `work`, and return its position on the stream. During a capture, return 0."""
        with self.lock:
            if stream in self.captures:
                self.captures[stream].append(work)
                return 0
            stream = LEGACY if stream == 1 else stream
            target = self.streams[stream]
            before: list[tuple[int, int]] = []  # (stream, the number of its works that must run before this work)
            if stream == LEGACY:
                before = [
                    (handle, len(other.works))
                    for handle, other in self.streams.items()
                    if handle != LEGACY and other.blocking
                ]
            elif target.blocking:
                before = [(LEGACY, len(self.streams[LEGACY].works))]

            def run() -> None:
                for handle, count in before:
                    self.run_to(handle, count)
                work()

            target.works.append(run)
            position = len(target.works)
            if not self.runs_late:
                self.run_to(stream, position)
            return position

    def run_to(self, stream: int, position: int) -> None:
        """Run the work of the stream up to `position`."""
        with self.lock:
            target = self.streams[stream]
            while target.done < position:
                target.done += 1
                work, target.works[target.done - 1] = target.works[target.done - 1], _nothing
                work()

    def synchronize(self, stream: int) -> str:
        """Run all work of the stream. Returns the text of an error, which is always empty."""
        stream = LEGACY if stream == 1 else stream
        self.run_to(stream, len(self.streams[stream].works))
        return ""

    def synchronize_all(self) -> None:
        for handle in list(self.streams):
            self.synchronize(handle)

    def pending(self, stream: int, position: int) -> bool:
        """Whether the work at `position` has not run yet."""
        return self.streams[LEGACY if stream == 1 else stream].done < position

    def record(self, stream: int) -> _Event:
        return _Event(stream, self.push(stream, _nothing))

    def wait(self, waiting_stream: int, event: _Event) -> None:
        if waiting_stream != event.stream:
            self.push(waiting_stream, lambda: self.run_to(event.stream, event.position))

    def claim_workspace(self, address: int, size_bytes: int, stream: int, position: int) -> None:
        """Record that work at `position` of `stream` uses this memory. Raises Misuse if pending work of another stream uses
        a part of it."""
        with self.lock:
            self.workspaces = [
                (*block, other, end) for *block, other, end in self.workspaces if self.pending(other, end)
            ]
            for start, size, other, _ in self.workspaces:
                if other != stream and start < address + size_bytes and address < start + size:
                    raise Misuse("two streams compute in one workspace at once")
            self.workspaces.append((address, size_bytes, stream, position))


def _nothing() -> None:
    pass
