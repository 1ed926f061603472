"""Objects of the CUDA driver: graphs, blocks of memory, events and streams. Only streams are kept for reuse."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from trtbuild.runtime.memory.device_memory import LEGACY_STREAM


class DriverMemory(Protocol):
    """The members of `trtbuild.runtime.memory.cuda_memory.CudaMemory` that these objects use."""

    driver: Any
    pool: Any
    idle_streams: list[int]

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the driver. Raises EngineError for its error codes."""
        ...

    def is_device_current(self) -> bool: ...

    def on_device(self) -> contextlib.AbstractContextManager[Any]: ...


class CudaGraph:
    """An instantiated CUDA graph."""

    def __init__(self, memory: DriverMemory, graph: Any) -> None:
        self._memory = memory
        self._graph = graph

    def launch(self, stream: int) -> None:
        self._memory.call(self._memory.driver.cuGraphLaunch, self._graph, stream)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self._memory.driver.cuGraphExecDestroy(self._graph)


class Block:
    """A block of memory from the pool. When its last array is freed, the driver frees the block after the work that is
    already on the block's stream."""

    __slots__ = ("_memory", "_stream", "address")

    def __init__(self, memory: DriverMemory, size: int, stream: int) -> None:
        self.address = 0
        self._memory = memory
        self._stream = stream
        if size:
            self.address = int(memory.call(memory.driver.cuMemAllocFromPoolAsync, size, memory.pool, stream))

    def __del__(self) -> None:
        if self.address:
            memory = self._memory
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                # The driver frees memory of the default stream only in a thread with a current context.
                needs_context = self._stream in (0, LEGACY_STREAM) and not memory.is_device_current()
                with memory.on_device() if needs_context else contextlib.nullcontext():
                    memory.driver.cuMemFreeAsync(self.address, self._stream)


class Event:
    """A CUDA event, recorded after the current work of a stream."""

    def __init__(self, memory: DriverMemory, stream: int) -> None:
        driver = memory.driver
        self.event = memory.call(driver.cuEventCreate, driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._memory = memory
        memory.call(driver.cuEventRecord, self.event, stream)

    def query(self) -> bool:
        driver = self._memory.driver
        (error,) = driver.cuEventQuery(self.event)
        # Any other error means that the work has failed and ended.
        return bool(error != driver.CUresult.CUDA_ERROR_NOT_READY)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._memory.driver.cuEventDestroy(self.event)


class Stream:
    """A stream that synchronizes with the legacy default stream, which CuPy, Numba and ``cudaMemcpy`` use."""

    def __init__(self, memory: DriverMemory) -> None:
        self._idle_streams = memory.idle_streams
        # An `if` does not suffice, because another thread could take the last stream before `pop`.
        with contextlib.suppress(IndexError):
            self.handle = self._idle_streams.pop()
            return
        driver = memory.driver
        with contextlib.nullcontext() if memory.is_device_current() else memory.on_device():
            self.handle = int(memory.call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_DEFAULT))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # `__init__` may have failed
            self._idle_streams.append(self.handle)
