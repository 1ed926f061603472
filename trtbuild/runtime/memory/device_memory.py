"""The interface of device memory, streams and graphs for engines: `TorchMemory` and `CudaMemory` implement it.

Rules
1. `empty` makes an array for one stream, and work on this stream may use the array at once. An array may be freed while its
   stream still has work. Its memory is used again only after this work. Neither `empty` nor freeing an array waits for
   the GPU.
2. Freed memory is kept for later calls, in torch's caching allocator or in the driver's memory pool.
3. `adopt` wraps an array of another library, whose allocator does not know our stream. So the array is kept until the
   stream has finished the call (`record_call`). Torch tensors are not kept: if a tensor was created on another stream than
   the current one, the caller must call ``tensor.record_stream``, as for every torch operator.
4. The device must be current when a method is called, except `is_device_current` and `on_device`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: A handle of the legacy default stream. Its other handle is 0, which torch.cuda uses.
LEGACY_STREAM = 1


class Array(Protocol):
    """A torch tensor, or a `DeviceArray`."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class CapturedGraph(Protocol):
    """A CUDA graph."""

    def launch(self, stream: int) -> None:
        """Enqueue all captured work on `stream`."""
        ...


class Memory(Protocol):
    """The memory of one GPU. A stream is given by its handle: 0 is the legacy default stream."""

    #: The GPU's number in torch and CUDA.
    ordinal: int
    #: The device, as in the attribute `device` of the arrays in this memory.
    device: Any
    #: Whether outputs of PyTorch must be made contiguous before engines read them.
    requires_contiguous: bool
    #: The types of arrays that are used as they are. `adopt` wraps arrays of other types.
    own_types: frozenset[type]

    def is_device_current(self) -> bool:
        """Whether the device is the calling thread's current device."""
        ...

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Make the device the calling thread's current device inside the block."""
        ...

    def stream(self) -> int:
        """Return the caller's stream: torch's current stream. Without torch, each thread has its own stream, which CUDA
        orders with the default stream."""
        ...

    def working_stream(self, stream: int) -> int:
        """Return the stream on which engines run for a caller on `stream`. It is `stream` itself, unless `stream` is the
        legacy default stream. In that case it is a stream that CUDA orders with the default stream. All threads get the
        same stream, because a thread may reuse memory that another thread freed on the default stream."""
        ...

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the caller's stream inside the block."""
        ...

    def dtype(self, name: str) -> Any:
        """Return `Array.dtype` for the element type `name`, such as ``float32``."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Create an array with undefined values. `dtype` is a result of the method `dtype`."""
        ...

    def array_maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Array]:
        """Return a function that does the same as `empty` with these arguments."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array: ...

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Array:
        """Return an array that uses the bytes of a contiguous `array`, from `offset_bytes` on, and keeps them alive."""
        ...

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Return an array that shares the memory of `value`. A tensor whose memory does not contain its values is copied
        (`materialize`). Work that is enqueued on `stream` after this call may read the result. Raises CallRefused, with
        `name` in its text."""
        ...

    def needs_materializing(self, array: Any) -> bool:
        """Whether the memory of `array` may not contain its values. If so, the caller has to use the result of
        `materialize` instead. The type of `array` must be one of `own_types`."""
        ...

    def materialize(self, array: Any, name: str) -> Array:
        """Return `array` if its memory contains its values, otherwise a copy whose memory contains them. Raises
        CallRefused, with `name` in its text."""
        ...

    def contiguous_copy(self, array: Any, stream: int) -> Array: ...

    def as_contiguous(self, array: Any, stream: int) -> Array:
        """Return `array`, or a contiguous copy if it is not contiguous."""
        ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copy contiguous `source` to contiguous `target` of the same size."""
        ...

    def record_call(self, stream: int) -> None:
        """Record the end of a call on `stream`. The arrays that this thread has adopted for the call are kept until the GPU
        has finished the call."""
        ...

    def upload(self, data: Any, dtype: str, stream: int) -> Array:
        """Copy a NumPy array to the device. The bits of bfloat16 are passed as uint16."""
        ...

    def download(self, array: Any) -> Any:
        """Copy an array to a NumPy array, after its stream has finished. bfloat16 becomes uint16 with the same bits."""
        ...

    def device_of(self, address: int) -> int | None:
        """Return the number of an address's GPU, or None for host memory. Only `CudaMemory` supports this, because
        torch's tensors know their device."""
        ...

    def wait(self, *, reader: int, writer: int) -> None:
        """Let later work on the stream `reader` wait for the present work on the stream `writer`."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all work on `stream` has finished. Raises EngineError if the work failed."""
        ...

    def capture(self, work: Callable[[int], None]) -> CapturedGraph:
        """Call `work` with a stream, and capture what it enqueues there, without running it. Raises EngineError."""
        ...
