"""Reads a file once for several consumers, such as hashes. Each consumer has a thread, because hashing runs without the
GIL."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

#: The number of bytes of one read.
BUFFER_SIZE = 1 << 20

# The number of buffers. While the slowest consumer uses one, the others are filled.
_BUFFER_COUNT = 4

#: A function that is called with each piece of a file, in order.
Consumer = Callable[[memoryview], object]


def read_through(descriptor: int, *consumers: Consumer) -> int:
    """Pass all bytes of an open file, in order, to every consumer. Returns the number of bytes.

    A consumer must not keep the memory that it receives. Raises OSError, and the errors of a consumer.
    """
    buffers: deque[tuple[memoryview, list[Future[object]]]] = deque(
        (memoryview(bytearray(BUFFER_SIZE)), []) for _ in range(_BUFFER_COUNT)
    )
    length = 0
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in consumers]
        while True:
            buffer, waiting = buffers.popleft()
            for future in waiting:
                future.result()
            count = os.preadv(descriptor, [buffer], length)
            if not count:
                break
            view = buffer[:count]
            futures = [thread.submit(consumer, view) for thread, consumer in zip(threads, consumers, strict=True)]
            buffers.append((buffer, futures))
            length += count
        for _, waiting in buffers:
            for future in waiting:
                future.result()
    return length
