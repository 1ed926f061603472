"""Activation memory of engines.

One workspace serves all engines that one thread runs on one stream. TensorRT needs it only while enqueued work runs, and
work on one stream runs in order; auxiliary streams join it at its end.
"""

from __future__ import annotations

import threading

from trtbuild.runtime.memory.device_memory import Array, Memory

#: The alignment of a tensor's address in bytes, which kernels rely on and cudaMalloc gives.
ALIGNMENT = 256

#: The alignment of activation memory in bytes. 8.6 requires it, although its documentation has 256 bytes.
MEMORY_ALIGNMENT = 512

#: The largest number of workspaces (by stream) of one thread. Then all are dropped, so that memory stays bounded.
_STREAMS = 32


def aligned(memory: Memory, size_bytes: int, alignment: int, stream: int) -> tuple[Array, int]:
    """Allocate memory. Returns it, and an address in it that is a multiple of `alignment` and has `size_bytes` after
    it.

    Allocators promise less than TensorRT requires (cudaMalloc 256 bytes).
    """
    array = memory.empty((size_bytes + alignment - 1,), memory.dtype("uint8"), stream)
    address = array.data_ptr()
    return array, address + -address % alignment


class Workspace:
    """Activation memory of all engines of one thread and stream. It grows to the size that the largest of them
    needs."""

    __slots__ = ("_memory", "_stream", "address", "array", "size_bytes")

    def __init__(self, memory: Memory, stream: int) -> None:
        self.size_bytes = 0
        self.address = 0
        self.array: Array | None = None
        self._memory = memory
        self._stream = stream

    def reserve(self, size_bytes: int) -> None:
        """Provide at least `size_bytes`. Replaced memory is freed after the work that uses it."""
        if size_bytes > self.size_bytes or not self.address:
            size_bytes = max(size_bytes, MEMORY_ALIGNMENT)  # at least one block, because null is refused
            self.array, self.address = aligned(self._memory, size_bytes, MEMORY_ALIGNMENT, self._stream)
            self.size_bytes = size_bytes


class Workspaces:
    """The workspaces of the engines of one package, by thread and stream."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._local = threading.local()

    def here(self, stream: int) -> Workspace:
        """The workspace of this thread and `stream`."""
        try:
            found: dict[int, Workspace] = self._local.by_stream
        except AttributeError:
            found = self._local.by_stream = {}
        workspace = found.get(stream)
        if workspace is None:
            if len(found) >= _STREAMS:
                found.clear()  # contexts keep those that they use
            workspace = found[stream] = Workspace(self.memory, stream)
        return workspace
