"""Device memory, streams and graphs for engines: from torch if it is installed, otherwise from the CUDA driver.

Rules
1. Memory is ordered by streams. Work on a stream may use the result of `empty` for that stream at once. When the last
   reference is gone, the memory is used again only after the work that is on the stream then. No call waits for the
   GPU.
2. A call allocates nothing from the system: both kinds keep freed memory (torch's caching allocator, a memory pool of
   the driver that releases nothing).
3. The allocator of an adopted array (`adopt`) does not know our stream. So the array is kept until the stream has
   finished the call (`called`; checked when the next array is adopted). Torch tensors follow torch's own rule: a tensor
   that was made on another stream than the current one needs ``tensor.record_stream``, as with every torch operator.
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
        """Enqueue all of it on `stream`."""
        ...


class Memory(Protocol):
    """The memory of one GPU. A stream is its handle; 0 is the legacy default stream."""

    #: The device's number in torch and CUDA.
    ordinal: int
    #: Equal to the `device` of its arrays.
    device: Any
    #: Whether arrays must be contiguous, because engines read rows in order.
    contiguous: bool
    #: The types of arrays that need not be adopted.
    own: frozenset[type]

    def is_current(self) -> bool:
        """Whether the device is the calling thread's current one."""
        ...

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Make it so in a block."""
        ...

    def stream(self) -> int:
        """The caller's stream: torch's current one; without torch, a stream of this thread, ordered with the default
        stream."""
        ...

    def working_stream(self, stream: int) -> int:
        """The stream on which engines work for a caller on `stream`: the same one. For the legacy default stream it is
        one that CUDA orders with it, the same for all threads, because their memory is ordered by the default
        stream."""
        ...

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the caller's stream inside the block, for this device."""
        ...

    def dtype(self, name: str) -> Any:
        """The element type in the form of `Array.dtype`."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Make a new array with undefined values. `dtype` is a result of `dtype()`."""
        ...

    def maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Array]:
        """Return a function that calls `empty` with these arguments."""
        ...

    def filled(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """Make a new array of zeros."""
        ...

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Array:
        """View the bytes of a contiguous `array` from `offset_bytes` on as another array, which keeps the memory."""
        ...

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """Wrap `value` without a copy, readable on `stream` from now on. Raises CallRefused; `name` is for its text."""
        ...

    def is_odd(self, array: Any) -> bool:
        """Whether the memory of an array that need not be adopted may not have its values: then it goes through
        `plain`."""
        ...

    def plain(self, array: Any, name: str) -> Array:
        """Return `array`, or a copy whose memory has its values. Raises CallRefused; `name` is for its text."""
        ...

    def packed(self, array: Any, stream: int) -> Array:
        """Make a new contiguous copy."""
        ...

    def as_contiguous(self, array: Any, stream: int) -> Array:
        """Return the array if it is contiguous, otherwise a contiguous copy."""
        ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copy contiguous `source` to contiguous `target` of the same size."""
        ...

    def called(self, stream: int) -> None:
        """Note that all work of a call is on `stream`: arrays that this thread adopted for it are kept until it has
        finished."""
        ...

    def upload(self, data: Any, dtype: str, stream: int) -> Array:
        """Copy a NumPy array to the device (bfloat16 as uint16 bits)."""
        ...

    def download(self, array: Any) -> Any:
        """Copy an array to a NumPy array, after its stream has finished (bfloat16 as uint16 bits)."""
        ...

    def device_of(self, address: int) -> int | None:
        """The device of an address; None for host memory."""
        ...

    def wait(self, *, reader: int, writer: int) -> None:
        """Let later work on stream `reader` wait for the present work on stream `writer`."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all work on `stream` has finished. Raises EngineError if any of it failed."""
        ...

    def capture(self, work: Callable[[int], None]) -> Graph:
        """Capture the work that `work` enqueues on its stream argument, without running it. Raises EngineError."""
        ...
