"""A fake of ``cuda.bindings.driver`` on a `FakeGpu`, with the functions that trtbuild calls.

As in the real module, the first value of each result is the error. Functions that call `_has_context` return an error if
it is false, as the driver of an H200 did.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.runtime.fake_gpu import FakeGpu, Misuse


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600


def _alive(event: Any) -> Any:
    """Return `event`. Raises Misuse if the event was destroyed: the real driver would end the process."""
    if event.destroyed:
        raise Misuse("an event that was destroyed")
    return event


class _Names:
    """An enumeration. The value of each member is its name."""

    def __getattr__(self, name: str) -> str:
        return name


class _Properties:
    def __init__(self) -> None:
        self.location = type("Location", (), {})()


OK = CUresult.CUDA_SUCCESS


class _Copy2D:
    """``CUDA_MEMCPY2D``."""

    srcMemoryType = dstMemoryType = None
    srcDevice = dstDevice = srcPitch = dstPitch = WidthInBytes = Height = 0


class FakeDriver:
    """The fake module. `fails` maps the name of a function to the error that it returns."""

    CUresult = CUresult
    CUmemAllocationType = CUmemLocationType = CUmemPool_attribute = CUstreamCaptureMode = CUpointer_attribute = _Names()
    CUevent_flags = CUmemorytype = _Names()
    CUDA_MEMCPY2D = _Copy2D
    CUmemPoolProps = _Properties

    class CUstream_flags:
        CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING = 0, 1

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.fails: dict[str, CUresult] = {}
        self.cuuint64_t = int

    def __getattribute__(self, name: str) -> Any:
        attribute = object.__getattribute__(self, name)
        if name.startswith("cu") and not name.startswith("cuuint") and name in self.fails:
            error = self.fails[name]
            return lambda *_: (error, None)
        return attribute

    def cuInit(self, flags: int) -> Any:
        return (OK,)

    def cuGetErrorString(self, error: CUresult) -> Any:
        return OK, error.name.lower().encode()

    def cuDeviceGetCount(self) -> Any:
        return OK, self.gpu.devices

    def cuDeviceGet(self, ordinal: int) -> Any:
        return OK, ordinal

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return OK, device + 100  # the handle of a context is the number of its device + 100

    def cuCtxGetCurrent(self) -> Any:
        current = self.gpu.current()
        return OK, 0 if current is None else current + 100

    def cuCtxPushCurrent(self, context: int) -> Any:
        self.gpu.push_device(context - 100)
        return (OK,)

    def cuCtxPopCurrent(self) -> Any:
        self.gpu.pop_device()
        return OK, None

    def cuMemPoolCreate(self, properties: Any) -> Any:
        return OK, object()

    def cuMemPoolSetAttribute(self, pool: Any, attribute: Any, value: Any) -> Any:
        return (OK,)

    def cuMemAllocFromPoolAsync(self, size: int, pool: Any, stream: int) -> Any:
        return OK, self.gpu.allocate(size, stream)

    def _has_context(self, stream: int = 0) -> bool:
        """Whether a call with `stream` finds a context: that of the stream, or that of the thread's current device."""
        return stream not in (0, 1) or self.gpu.current() is not None

    def cuMemFreeAsync(self, address: int, stream: int) -> Any:
        if not self._has_context(stream):
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.gpu.free_on(address, stream)
        return (OK,)

    def cuStreamCreate(self, flags: int) -> Any:
        return OK, self.gpu.new_stream(blocking=flags == 0)

    def cuStreamSynchronize(self, stream: int) -> Any:
        self.gpu.synchronize(stream)
        return (OK,)

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> Any:
        self.gpu.wait(stream, _alive(event).recorded)
        return (OK,)

    def cuEventCreate(self, flags: Any) -> Any:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return OK, type("Event", (), {"recorded": None, "destroyed": False})()

    def cuEventRecord(self, event: Any, stream: int) -> Any:
        _alive(event).recorded = self.gpu.record(stream)
        return (OK,)

    def cuEventQuery(self, event: Any) -> Any:
        _alive(event)
        waiting = self.gpu.pending(event.recorded.stream, event.recorded.position)
        return (CUresult.CUDA_ERROR_NOT_READY if waiting else OK,)

    def cuEventDestroy(self, event: Any) -> Any:
        _alive(event).destroyed = True
        return (OK,)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> Any:
        return self._push(stream, lambda: self.gpu.write(address, np.full(size, value, np.uint8)))

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            self.gpu.check(source, size, "the source of a copy")
            self.gpu.write(target, self.gpu.read(source, (size,), np.uint8))

        return self._push(stream, copy)

    def cuMemcpy2DAsync(self, parameters: _Copy2D, stream: int) -> Any:
        copy = vars(parameters).copy()
        if {copy["srcMemoryType"], copy["dstMemoryType"]} != {"CU_MEMORYTYPE_DEVICE"}:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        width = copy["WidthInBytes"]
        pitches = copy["srcPitch"], copy["dstPitch"]
        if min(pitches) < width or max(pitches) > 2**31 - 1:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        for row in range(copy["Height"]):
            target, source = copy["dstDevice"] + row * copy["dstPitch"], copy["srcDevice"] + row * copy["srcPitch"]
            self.cuMemcpyDtoDAsync(target, source, width, stream)
        return (OK,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        # the fake's addresses are all in host memory, so both directions are the same
        return self._push(stream, lambda: self.gpu.write(target, self.gpu.read(source, (size,), np.uint8)))

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        if not self._has_context(stream):
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        return self.cuMemcpyHtoDAsync(target, source, size, stream)

    def _push(self, stream: int, work: Callable[[], None]) -> Any:
        self.gpu.push(stream, work)
        return (OK,)

    def cuPointerGetAttribute(self, attribute: Any, address: int) -> Any:
        try:
            self.gpu.check(address, 1, "the address")
        except AssertionError:
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        return OK, 0  # the number of the device

    def cuStreamBeginCapture(self, stream: int, mode: Any) -> Any:
        self.gpu.captures[stream] = []
        return (OK,)

    def cuStreamEndCapture(self, stream: int) -> Any:
        return OK, self.gpu.captures.pop(stream)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return OK, list(graph)

    def cuGraphDestroy(self, graph: Any) -> Any:
        return (OK,)

    def cuGraphExecDestroy(self, graph: Any) -> Any:
        return (OK,)

    def cuGraphLaunch(self, graph: Any, stream: int) -> Any:
        for work in graph:
            self.gpu.push(stream, work)
        return (OK,)
