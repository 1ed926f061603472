"""How this process's memory allocator deals with the large buffers of an engine: weights, the plan, and TensorRT's own.

glibc keeps what is freed, and grows the size up to which it does (mallopt(3), M_MMAP_THRESHOLD): after a ViT-B, 600 MB
stayed with an idle worker. With a fixed threshold large buffers go back at once (a peak of 1,338 MiB where it was
1,422), and `give_back` returns the rest. Elsewhere both do nothing.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

# <malloc.h>
_M_MMAP_THRESHOLD = -3

#: Buffers of this size (bytes) and larger are the system's, and go back to it when they are freed.
_LARGE_SIZE = 1 << 20


@functools.cache
def keep_no_large_buffers() -> None:
    """Fix the size from which buffers are the system's own."""
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_SIZE)


def give_back() -> None:
    """Return free memory to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function: Any = getattr(_libc(), name, None)
    if function is not None:
        function(*arguments)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # a platform whose C library is not found so
        return None
