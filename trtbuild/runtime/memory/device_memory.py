"""The interface of device memory, streams and graphs for engines. torch provides them if it can use a GPU here. Otherwise
the CUDA driver provides them.

Rules
1. Streams order the use of memory. Work on a stream may use the result of `empty` for that stream at once. When the last
   reference to an array is deleted, the stream may still have work. The memory is used again only after that work.
   Neither `empty` nor the release of an array waits for the GPU.
2. After the first calls, a call allocates no memory from the system: torch's caching allocator or the driver's memory pool
   keeps freed memory for later use.
3. The allocator of an adopted array (`adopt`) does not know our stream. So the array is kept until the stream has finished
   the call (`record_call`). The arrays of finished calls are released when the next array is adopted. Torch tensors follow
   torch's own rule: if a tensor was created on another stream than the current one, the caller must call
   ``tensor.record_stream``, as for every torch operator.
4. The device must be current when a method is called, except `is_device_current` and `on_device`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: The second handle of the legacy default stream. The first handle is 0, which torch.cuda uses.
LEGACY_STREAM = 1


class Array(Protocol):
    """An input or output of a part of a package: a torch tensor, or a `DeviceArray`."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class CapturedGraph(Protocol):
    """Captured work (a CUDA graph)."""

    def launch(self, stream: int) -> None:
        """Enqueue all captured work on `stream`."""
        ...


class Memory(Protocol):
    """The memory of one GPU. Streams are given by their handles; 0 is the legacy default stream."""

    #: The GPU's number in torch and CUDA.
    ordinal: int
    #: The value of the attribute `device` of its arrays.
    device: Any
    #: Whether outputs of parts that PyTorch computes must be contiguous if engines read them.
    requires_contiguous: bool
    #: The types of arrays that need not be adopted.
    own_types: frozenset[type]

    def is_device_current(self) -> bool:
        """Whether the device is the calling thread's current device."""
        ...

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Make the device the calling thread's current device inside the block."""
        ...

    def stream(self) -> int:
        """Return the caller's stream: torch's current stream. Without torch, each thread has its own stream, and CUDA
        orders this stream with the default stream."""
        ...

    def working_stream(self, stream: int) -> int:
        """Return the stream on which engines work for a caller on `stream`. It is `stream` itself, unless `stream` is the
        legacy default stream. For the default stream it is another stream, which CUDA orders with the default stream. This
        other stream is the same for all threads, because a thread may reuse memory that another thread freed on the
        default stream."""
        ...

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the caller's stream inside the block, for this device."""
        ...

    def dtype(self, name: str) -> Any:
        """Return the value of `Array.dtype` for the element type `name`."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Create a new array with undefined values. `dtype` is a result of the method `dtype`."""
        ...

    def array_maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Array]:
        """Return a function that does the same as `empty` with these arguments."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Create a new array of zeros."""
        ...

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Array:
        """Return another array that uses the bytes of a contiguous `array`, from `offset_bytes` on. The memory is not freed
        while the new array exists."""
        ...

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Wrap `value` without a copy, except a tensor that `materialize` copies. From now on, work on `stream` may read
        the result. Raises CallRefused; `name` is for the text of the error."""
        ...

    def needs_materializing(self, array: Any) -> bool:
        """Whether the memory of an array that need not be adopted may differ from its values. If so, `materialize` must be
        called."""
        ...

    def materialize(self, array: Any, name: str) -> Array:
        """Return `array` if its memory contains its values, otherwise a copy whose memory contains them. Raises
        CallRefused; `name` is for the text of the error."""
        ...

    def contiguous_copy(self, array: Any, stream: int) -> Array:
        """Return a new contiguous copy."""
        ...

    def as_contiguous(self, array: Any, stream: int) -> Array:
        """Return `array` if it is contiguous, otherwise a contiguous copy."""
        ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copy contiguous `source` to contiguous `target` of the same size."""
        ...

    def record_call(self, stream: int) -> None:
        """Record the end of a call on `stream`, which has all work of the call. The arrays that this thread has adopted for
        the call are not freed before this work has finished."""
        ...

    def upload(self, data: Any, dtype: str, stream: int) -> Array:
        """Copy a NumPy array to the device (bfloat16 as uint16 bits)."""
        ...

    def download(self, array: Any) -> Any:
        """Copy an array to a NumPy array, after its stream has finished (bfloat16 as uint16 bits)."""
        ...

    def device_of(self, address: int) -> int | None:
        """The device of an address, or None for host memory."""
        ...

    def wait(self, *, reader: int, writer: int) -> None:
        """Let later work on stream `reader` wait for the current work on stream `writer`."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all work on `stream` has finished. Raises EngineError if some of this work failed."""
        ...

    def capture(self, work: Callable[[int], None]) -> CapturedGraph:
        """Capture the work that `work` enqueues on its stream argument, without running it. Raises EngineError."""
        ...
