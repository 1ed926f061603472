"""Device memory, streams and graphs for engines: from torch if it is installed, otherwise from the CUDA driver.

Rules
1. Memory is ordered by streams. Work on a stream may use the result of `empty` for that stream at once. When the last
   reference to an array is deleted, its memory is used again only after the work that is then on the stream. No call waits
   for the GPU.
2. A call allocates no memory from the system: both kinds of memory keep freed memory for later use (torch's caching
   allocator, a memory pool of the driver that releases nothing).
3. The allocator of an adopted array (`adopt`) does not know our stream. So the array is not freed before the stream has
   finished the call (`called`; checked when the next array is adopted). Torch tensors follow torch's own rule: a tensor
   that was created on another stream than the current one needs ``tensor.record_stream``, as with every torch operator.
4. The device must be current in all calls (`is_current`, `on_device`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Array(Protocol):
    """A value between parts of a package: a torch tensor, or a `DeviceArray`."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class Graph(Protocol):
    """Captured work (a CUDA graph)."""

    def launch(self, stream: int) -> None:
        """Enqueue all captured work on `stream`."""
        ...


class Memory(Protocol):
    """The memory of one GPU. Streams are given by their handles; 0 is the legacy default stream."""

    #: The device's number in torch and CUDA.
    ordinal: int
    #: Its arrays have this `device`.
    device: Any
    #: Whether arrays must be contiguous, because engines read rows in order.
    contiguous: bool
    #: The types of arrays that need not be adopted.
    own: frozenset[type]

    def is_current(self) -> bool:
        """Whether the device is the calling thread's current device."""
        ...

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Make the device the calling thread's current device inside the block."""
        ...

    def stream(self) -> int:
        """The caller's stream: torch's current stream. Without torch, it is a stream of this thread, ordered with the
        default stream."""
        ...

    def working_stream(self, stream: int) -> int:
        """The stream on which engines work for a caller on `stream`. It is `stream` itself, except for the legacy default
        stream: then it is another stream, which CUDA orders with the default stream. All threads get the same one, because
        the default stream orders their memory."""
        ...

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the caller's stream inside the block, for this device."""
        ...

    def dtype(self, name: str) -> Any:
        """The element type in the form of `Array.dtype`."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Create a new array with undefined values. `dtype` is a result of `dtype()`."""
        ...

    def maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Array]:
        """Return a function that calls `empty` with these arguments."""
        ...

    def filled(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Create a new array of zeros."""
        ...

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Array:
        """Return another array on the bytes of a contiguous `array`, from `offset_bytes` on. The memory is not freed before
        this array."""
        ...

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Wrap `value` without a copy. From now on, work on `stream` may read it. Raises CallRefused; `name` is for its
        text."""
        ...

    def is_odd(self, array: Any) -> bool:
        """Whether the memory of an array that need not be adopted perhaps does not contain its values. Then `plain` must be
        called."""
        ...

    def plain(self, array: Any, name: str) -> Array:
        """Return `array`, or a copy whose memory contains its values. Raises CallRefused; `name` is for its text."""
        ...

    def packed(self, array: Any, stream: int) -> Array:
        """Return a new contiguous copy."""
        ...

    def as_contiguous(self, array: Any, stream: int) -> Array:
        """Return the array if it is contiguous, otherwise a contiguous copy."""
        ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copy contiguous `source` to contiguous `target` of the same size."""
        ...

    def called(self, stream: int) -> None:
        """Note that all work of a call is on `stream`. The arrays that this thread has adopted for the call are not freed
        before this work has finished."""
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

    def capture(self, work: Callable[[int], None]) -> Graph:
        """Capture the work that `work` enqueues on its stream argument, without running it. Raises EngineError."""
        ...
