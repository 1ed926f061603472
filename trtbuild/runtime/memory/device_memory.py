"""Device memory, streams and graphs, as engines need them: from torch where it is, else from the CUDA driver.

Rules
1. Memory is ordered by streams: what `empty` gives for a stream may be used by work on that stream at once, and when the
   last reference goes, the memory is used again only after work that is on the stream by then. No call waits for the GPU.
2. Nothing is allocated from the system per call: both kinds keep what was freed (torch's caching allocator, a memory pool
   of the driver that releases nothing).
3. What came from elsewhere (`adopt`) belongs to an allocator that knows nothing of our stream: it is kept until the stream
   has passed the call (`called`; looked at when the next such array comes). Torch tensors follow torch's own rule: a tensor
   that was made on another stream than the current one needs ``tensor.record_stream``, as with every torch operator.
4. All calls are made with the device current (`is_current`, `on_device`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Array(Protocol):
    """What parts of a package hand on: a torch tensor, or a `DeviceArray`."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> Any: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class Graph(Protocol):
    """Work that was captured (a CUDA graph)."""

    def launch(self, stream: int) -> None:
        """Enqueue all of it on `stream`."""
        ...


class Memory(Protocol):
    """The memory of one GPU. A stream is its handle; 0 is the legacy default stream."""

    #: The device's number, as torch and CUDA count.
    ordinal: int
    #: Equal to the `device` of arrays on it.
    device: Any
    #: Whether arrays have to be contiguous: engines read rows in order.
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
        """The caller's stream: torch's current one; without torch one of this thread, ordered with the default one."""
        ...

    def working_stream(self, stream: int) -> int:
        """Where engines work for a caller on `stream`: there; for the legacy default stream one that CUDA orders with it,
        the same for all threads, as their memory is ordered by the default stream."""
        ...

    def on_stream(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` the caller's in a block, for this device."""
        ...

    def dtype(self, name: str) -> Any:
        """An element type as `Array.dtype` has it."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """A new array, whose values are anything. `dtype` is as `dtype()` gives it."""
        ...

    def maker(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Callable[[], Array]:
        """What does `empty` for these, again and again."""
        ...

    def filled(self, shape: tuple[int, ...], dtype: Any, stream: int) -> Array:
        """A new array of zeros."""
        ...

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset_bytes: int = 0) -> Array:
        """The bytes of a contiguous `array` from `offset_bytes` on as another array, which keeps the memory."""
        ...

    def adopt(self, value: object, name: str, stream: int) -> Array:
        """`value` where it lies, readable on `stream` from now on. Raises CallRefused; `name` is for its text."""
        ...

    def is_odd(self, array: Any) -> bool:
        """Whether an array that need not be adopted may be one whose memory does not hold its values: then it goes through
        `plain`."""
        ...

    def plain(self, array: Any, name: str) -> Array:
        """`array`, or a copy of it whose memory holds its values. Raises CallRefused; `name` is for its text."""
        ...

    def packed(self, array: Any, stream: int) -> Array:
        """A new contiguous copy."""
        ...

    def as_contiguous(self, array: Any, stream: int) -> Array:
        """The array itself where it is contiguous, else a copy that is."""
        ...

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Contiguous `source` into contiguous `target`, of one size."""
        ...

    def called(self, stream: int) -> None:
        """All work of a call is on `stream` now: what was adopted on this thread for it is kept until that is done."""
        ...

    def upload(self, data: Any, dtype: str, stream: int) -> Array:
        """A NumPy array's values as an array (bfloat16 as uint16 bits)."""
        ...

    def download(self, array: Any) -> Any:
        """An array's values as a NumPy array, after its stream is done (bfloat16 as uint16 bits)."""
        ...

    def device_of(self, address: int) -> int | None:
        """The device whose memory an address is in; None for the host's."""
        ...

    def wait(self, *, reader: int, writer: int) -> None:
        """Let what comes on stream `reader` wait for what is on stream `writer`."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all on `stream` is done. Raises EngineError when any of it failed."""
        ...

    def capture(self, work: Callable[[int], None]) -> Graph:
        """What `work` enqueues on the stream that it is given; it is not run. Raises EngineError."""
        ...
