"""The workspaces of engines. A workspace is activation memory (scratch memory).

The engines of one `EngineSet` that a thread runs on one stream share a workspace. Sharing is safe, because TensorRT needs
the workspace only while enqueued work runs, and work on one stream runs in order. TensorRT's auxiliary streams join the
stream at the end of the work.
"""

from __future__ import annotations

import threading

from trtbuild.runtime.memory.device_memory import Array, Memory

#: The alignment of a tensor's address in bytes. Kernels rely on it, and cudaMalloc guarantees it.
ALIGNMENT = 256

#: The alignment of activation memory in bytes. TensorRT 8.6 requires it, although its documentation names 256 bytes.
MEMORY_ALIGNMENT = 512

#: The largest number of workspaces that one thread has for one `EngineSet`. When it is reached, all of them are forgotten.
_MOST_WORKSPACES = 32


def allocate_aligned(memory: Memory, size_bytes: int, alignment: int, stream: int) -> tuple[Array, int]:
    """Allocate `size_bytes` at an aligned address, and return the array around them and this address.

    Allocators guarantee a smaller alignment than TensorRT requires (cudaMalloc: 256 bytes).
    """
    array = memory.empty((size_bytes + alignment - 1,), memory.dtype("uint8"), stream)
    address = array.data_ptr()
    return array, address + -address % alignment  # rounded up to the next multiple


class Workspace:
    """The activation memory of one thread and stream. It is large enough for each engine that has used it so far."""

    __slots__ = ("_memory", "_stream", "address", "array", "size_bytes")

    def __init__(self, memory: Memory, stream: int) -> None:
        self.size_bytes = 0
        self.address = 0
        self.array: Array | None = None
        self._memory = memory
        self._stream = stream

    def reserve(self, size_bytes: int) -> None:
        """Make the workspace at least `size_bytes` large. Memory that is replaced is freed after the work that uses it."""
        if size_bytes > self.size_bytes or not self.address:
            # Even an engine that needs no memory gets an address, because TensorRT refuses a null pointer.
            size_bytes = max(size_bytes, MEMORY_ALIGNMENT)
            self.array, self.address = allocate_aligned(self._memory, size_bytes, MEMORY_ALIGNMENT, self._stream)
            self.size_bytes = size_bytes


class Workspaces:
    """The workspaces of one `EngineSet`, for all threads and streams."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._thread_local = threading.local()

    def workspace_for(self, stream: int) -> Workspace:
        """Return the workspace of this thread and `stream`."""
        try:
            by_stream: dict[int, Workspace] = self._thread_local.by_stream
        except AttributeError:
            by_stream = self._thread_local.by_stream = {}
        workspace = by_stream.get(stream)
        if workspace is None:
            if len(by_stream) >= _MOST_WORKSPACES:
                by_stream.clear()  # a workspace that a run still uses is not freed, because the run refers to it
            workspace = by_stream[stream] = Workspace(self.memory, stream)
        return workspace
