"""Content-defined chunking (FastCDC): splits large blobs, so that two blobs with equal pieces have chunks in common.

Rules
1. The boundaries follow FastCDC (Xia et al., USENIX ATC 2016). The package `fastcdc` computes them from the bytes and from
   the sizes below. The sizes are part of the store's format: with others, new blobs would share no chunks with older ones.
2. A blob of at most `MAX_SIZE` bytes is not split. So a chunk list has at least two chunks, and every CAS file of a
   blob fits into memory.
3. A file is read once, in windows: pieces of about `WINDOW_SIZE` bytes. A window in memory is hashed, split and written. If
   the file changes meanwhile, the blob may be a mixture of old and new bytes, but its name is right. (With mmap, the
   hashed and the written bytes could differ, and truncating the file would raise SIGBUS.)
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

#: Sizes of chunks in bytes (rule 1). MEAN_SIZE is FastCDC's "average": chunks of random bytes have a mean size of 253 KiB.
MIN_SIZE = 64 << 10
MEAN_SIZE = 256 << 10
MAX_SIZE = 1 << 20

#: The size of a window in bytes. A window may be larger or smaller by less than `MAX_SIZE`. The last window of a blob may
#: have any smaller size.
WINDOW_SIZE = 16 << 20


@dataclass(frozen=True)
class Window:
    """A piece of a blob (`data`), and its chunks: consecutive slices of `data`."""

    data: memoryview
    chunks: tuple[memoryview, ...]


_import_lock = threading.Lock()


@lru_cache(maxsize=1)
def _import_fastcdc() -> Callable[..., Any]:
    """The function that computes the boundaries (rule 1)."""
    # Without its compiled code the package prints a notice to stdout, where only the --json document may be. The lock is
    # there because two threads that redirect stdout at once could leave it redirected.
    with _import_lock, contextlib.redirect_stdout(io.StringIO()):
        from fastcdc import fastcdc
    cutter: Callable[..., Any] = fastcdc
    return cutter


def chunk_bounds(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) of each chunk of `data`. A chunk depends on at most `MAX_SIZE` bytes after its offset."""
    for chunk in _import_fastcdc()(data, min_size=MIN_SIZE, avg_size=MEAN_SIZE, max_size=MAX_SIZE):
        yield chunk.offset, chunk.length


def windows_of_bytes(data: memoryview) -> Iterator[Window]:
    """Yield `data` in windows, without copying."""
    start, chunks = 0, []
    for offset, length in chunk_bounds(data):
        end = offset + length
        chunks.append(data[offset:end])
        if end - start >= WINDOW_SIZE:
            yield Window(data[start:end], tuple(chunks))
            start, chunks = end, []
    if chunks:
        yield Window(data[start:], tuple(chunks))


class WindowCutter:
    """Collects bytes that arrive in pieces, and returns them in windows that own their memory.

    The caller writes bytes to the start of `room`, and then calls `advance` with their number.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(WINDOW_SIZE))
        self._filled = 0

    @property
    def room(self) -> memoryview:
        """The memory for the next bytes. It has at least one byte."""
        return self._buffer[self._filled :]

    def advance(self, count: int) -> Window | None:
        """Take the `count` bytes that the caller has written to `room`. Returns a window if the buffer is full."""
        self._filled += count
        return self._cut(at_end=False) if self._filled == WINDOW_SIZE else None

    def finish(self) -> Window | None:
        """The last window; None if all bytes are in earlier windows."""
        return self._cut(at_end=True)

    def _cut(self, *, at_end: bool) -> Window | None:
        window_size, chunks = 0, []
        for offset, length in chunk_bounds(self._buffer[: self._filled]):
            if not at_end and self._filled - offset < MAX_SIZE:  # the chunk's end may depend on bytes that follow
                break
            window_size = offset + length
            chunks.append(self._buffer[offset:window_size])
        window = Window(self._buffer[:window_size], tuple(chunks)) if chunks else None
        remainder = self._buffer[window_size : self._filled]
        self._buffer = memoryview(bytearray(0 if at_end else WINDOW_SIZE))
        self._buffer[: len(remainder)] = remainder
        self._filled = len(remainder)
        return window


def windows_of_file(head: bytes | bytearray, rest: BinaryIO) -> Iterator[Window]:
    """Yield `head` and the bytes of the file `rest`, in windows that own their memory. `head` is shorter than a window.

    Raises OSError."""
    cutter = WindowCutter()
    cutter.room[: len(head)] = head
    cutter.advance(len(head))  # no window, because the buffer is not full
    while count := rest.readinto(cutter.room):  # type: ignore[attr-defined]
        window = cutter.advance(count)
        if window is not None:
            yield window
    window = cutter.finish()
    if window is not None:
        yield window
