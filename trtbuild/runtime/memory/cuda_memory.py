"""Memory, streams and graphs from the CUDA driver through cuda-python.

`trtbuild.runtime.memory.device_memory` describes the methods, and has the rules. `driver` is ``cuda.bindings.driver``
(cuda-python 12.6 to 13). Its functions return a tuple, whose first item is the error.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trtbuild.errors import EngineError, EnvironmentFault
from trtbuild.runtime.memory.arrays import DeviceArray, wrap_array, wrong_device_error
from trtbuild.runtime.memory.cuda_objects import Block, CudaGraph, Event, Stream
from trtbuild.runtime.memory.device_memory import LEGACY_STREAM
from trtbuild.runtime.memory.dlpack import row_major
from trtbuild.runtime.memory.dtypes import ARRAY_TYPES
from trtbuild.runtime.memory.foreign import AdoptedArrays
from trtbuild.runtime.memory.strides import Rows, rows_of

#: The release threshold of a memory pool that keeps all freed memory.
_KEEP_ALL = 2**64 - 1


class CudaMemory:
    """The memory of GPU `ordinal`: a separate memory pool in the device's primary context, which other libraries use, too.

    Raises EnvironmentFault if there is no driver or no such GPU.
    """

    requires_contiguous = True
    #: No type, because even a DeviceArray is passed to `adopt`: this method waits for the stream that wrote the array.
    own_types: frozenset[type] = frozenset()

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.ordinal = ordinal
        self.device = f"cuda:{ordinal}"
        self.driver = driver
        try:
            self.call(driver.cuInit, 0)
            count = self.call(driver.cuDeviceGetCount)
        except (EngineError, RuntimeError, OSError) as error:  # cuda-python raises RuntimeError without a driver
            raise EnvironmentFault(
                f"there is no CUDA device here: {error}", hint="engines need a machine with an NVIDIA driver"
            ) from error
        if not 0 <= ordinal < count:
            raise EnvironmentFault(
                f"there is no cuda:{ordinal}: the CUDA driver finds {count or 'no'} GPU{'s' * (count != 1)} here"
            )
        device = self.call(driver.cuDeviceGet, ordinal)
        self._context = self.call(driver.cuDevicePrimaryCtxRetain, device)
        self._context_address = int(self._context)
        with self.on_device():
            self.pool = self._new_pool()
        self._adopted_arrays = AdoptedArrays(self._record)
        #: For each thread: its `own_stream`, and inside a block of `on_stream` the `chosen_stream`.
        self._streams = threading.local()
        self._lock = threading.Lock()
        self._default_stream_substitute: Stream | None = None
        #: Streams that are not used now, such as those of threads that have ended. A new `Stream` uses one of them. A
        #: stream is never destroyed, because arrays may still be freed on it.
        self.idle_streams: list[int] = []

    def _new_pool(self) -> Any:
        driver = self.driver
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.ordinal
        pool = self.call(driver.cuMemPoolCreate, properties)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call(driver.cuMemPoolSetAttribute, pool, threshold, driver.cuuint64_t(_KEEP_ALL))
        return pool

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        error, *values = function(*arguments)
        if error:
            raise self._error(function, error)
        return values[0] if values else None

    def _error(self, function: Callable[..., Any], error: Any) -> EngineError:
        _, text = self.driver.cuGetErrorString(error)
        reason = text.decode() if isinstance(text, bytes) else str(text)
        name = getattr(function, "__name__", "CUDA")
        return EngineError(f"{name}: {getattr(error, 'name', error)}: {reason}")

    # -- device and streams

    def is_device_current(self) -> bool:
        return int(self.call(self.driver.cuCtxGetCurrent)) == self._context_address

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        self.call(self.driver.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            self.call(self.driver.cuCtxPopCurrent)

    def stream(self) -> int:
        chosen_stream = getattr(self._streams, "chosen_stream", None)
        if chosen_stream is not None:
            return int(chosen_stream)
        own_stream = getattr(self._streams, "own_stream", None)
        if own_stream is None:
            own_stream = self._streams.own_stream = Stream(self)
        return own_stream.handle

    def working_stream(self, stream: int) -> int:
        if stream not in (0, LEGACY_STREAM):
            return stream
        with self._lock:
            if self._default_stream_substitute is None:
                self._default_stream_substitute = Stream(self)
            return self._default_stream_substitute.handle

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        before = getattr(self._streams, "chosen_stream", None)
        self._streams.chosen_stream = stream
        try:
            yield
        finally:
            self._streams.chosen_stream = before

    def _record(self, stream: int) -> Event:
        return Event(self, stream)

    def wait(self, *, reader: int, writer: int) -> None:
        if reader != writer:
            end_of_writes = self._record(writer)  # in a variable, because the event is destroyed with this object
            self.call(self.driver.cuStreamWaitEvent, reader, end_of_writes.event, 0)

    def synchronize(self, stream: int) -> None:
        self.call(self.driver.cuStreamSynchronize, stream)

    # -- arrays

    @staticmethod
    def needs_materializing(array: DeviceArray) -> bool:
        return False

    def materialize(self, array: DeviceArray, name: str) -> DeviceArray:
        return array

    def dtype(self, name: str) -> str:
        return ARRAY_TYPES[name].name

    def empty(self, shape: tuple[int, ...], dtype: str, stream: int) -> DeviceArray:
        size = math.prod(shape) * ARRAY_TYPES[dtype].itemsize
        block = Block(self, size, stream)
        return DeviceArray(self, block.address, shape, dtype, owner=block, stream=stream)

    def array_maker(self, shape: tuple[int, ...], dtype: str, stream: int) -> Callable[[], DeviceArray]:
        return functools.partial(self.empty, shape, dtype, stream)

    def zeros(self, shape: tuple[int, ...], dtype: str, stream: int) -> DeviceArray:
        array = self.empty(shape, dtype, stream)
        if array.nbytes:
            self.call(self.driver.cuMemsetD8Async, array.address, 0, array.nbytes, stream)
        return array

    def view(self, array: DeviceArray, shape: tuple[int, ...], dtype: str, offset_bytes: int = 0) -> DeviceArray:
        return DeviceArray(self, array.address + offset_bytes, shape, dtype, owner=array.owner, stream=array.stream)

    def adopt(self, value: object, name: str, stream: int) -> DeviceArray:
        if isinstance(value, DeviceArray):
            if value.memory.ordinal != self.ordinal:
                raise wrong_device_error(name, value.device, self.ordinal)
            if value.stream is None or value.stream == stream:
                # A Block is freed on this stream, that is, after our work. Any other owner has memory of another library:
                # then the array is an adopted input that a model has returned.
                if not isinstance(value.owner, Block):
                    self._adopted_arrays.keep_for_call(value.owner)
                return value
            self.wait(reader=stream, writer=value.stream)
            self._adopted_arrays.keep_for_call(value)
            return value
        with contextlib.nullcontext() if self.is_device_current() else self.on_device():
            array = wrap_array(self, value, stream, name)
        self._adopted_arrays.keep_for_call(array.owner)
        return array

    def as_contiguous(self, array: DeviceArray, stream: int) -> DeviceArray:
        return array if array.strides is None else self.contiguous_copy(array, stream)

    def contiguous_copy(self, array: DeviceArray, stream: int) -> DeviceArray:
        target = self.empty(array.shape, array.dtype, stream)
        strides = row_major(array.shape) if array.strides is None else array.strides
        for rows in rows_of(array.shape, strides):
            self._copy_rows(target.address, array.address, rows, ARRAY_TYPES[array.dtype].itemsize, stream)
        return target

    def copy(self, source: DeviceArray, target: DeviceArray, stream: int) -> None:
        self._copy(target.address, source.address, source.nbytes, stream)

    def _copy(self, target: int, source: int, size: int, stream: int) -> None:
        if size:
            self.call(self.driver.cuMemcpyDtoDAsync, target, source, size, stream)

    def _copy_rows(self, target: int, source: int, rows: Rows, itemsize: int, stream: int) -> None:
        target, source = target + rows.target * itemsize, source + rows.source * itemsize
        if rows.count == 1:
            self._copy(target, source, rows.length * itemsize, stream)
            return
        driver = self.driver
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.srcPitch = source, rows.source_pitch * itemsize
        copy.dstDevice, copy.dstPitch = target, rows.target_pitch * itemsize
        copy.WidthInBytes, copy.Height = rows.length * itemsize, rows.count
        self.call(driver.cuMemcpy2DAsync, copy, stream)

    def record_call(self, stream: int) -> None:
        self._adopted_arrays.record_call(stream)

    def upload(self, data: Any, dtype: str, stream: int) -> DeviceArray:
        import numpy as np

        shape = tuple(np.shape(data))  # ascontiguousarray would add an axis to a scalar
        data = np.ascontiguousarray(data)
        array = self.empty(shape, dtype, stream)
        if array.nbytes != data.nbytes:
            raise ValueError(f"{data.dtype} is not {dtype}")
        if data.nbytes:
            self.call(self.driver.cuMemcpyHtoDAsync, array.address, data.ctypes.data, data.nbytes, stream)
            self.synchronize(stream)  # because the caller may change `data` after the call
        return array

    def download(self, array: DeviceArray) -> Any:
        import numpy as np

        stream = self.stream() if array.stream is None else array.stream
        if array.strides is not None:
            array = self.contiguous_copy(array, stream)
        element = ARRAY_TYPES[array.dtype]
        kind = element.typestr or {1: "|u1", 2: "<u2"}[element.itemsize]
        data: Any = np.empty(array.shape, kind)
        if data.nbytes:
            self.call(self.driver.cuMemcpyDtoHAsync, data.ctypes.data, array.address, data.nbytes, stream)
        self.synchronize(stream)
        return data

    def device_of(self, address: int) -> int | None:
        attribute = self.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        error, ordinal = self.driver.cuPointerGetAttribute(attribute, address)
        return None if error else int(ordinal)

    # -- graphs

    def capture(self, work: Callable[[int], None]) -> CudaGraph:
        driver = self.driver
        stream = Stream(self)  # in a variable, because other threads may use the handle once this object is freed
        handle = stream.handle
        self.call(driver.cuStreamBeginCapture, handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        try:
            work(handle)
        except BaseException:
            _, graph = driver.cuStreamEndCapture(handle)  # the captured graph is not used
            if graph:
                driver.cuGraphDestroy(graph)
            raise
        graph = self.call(driver.cuStreamEndCapture, handle)
        try:
            return CudaGraph(self, self.call(driver.cuGraphInstantiate, graph, 0))
        finally:
            self.call(driver.cuGraphDestroy, graph)
