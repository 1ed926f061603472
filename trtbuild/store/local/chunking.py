"""Content-defined chunks: where a large blob is cut, so that blobs that share bytes share chunks.

Rules
1. The boundaries are FastCDC's (Xia et al., USENIX ATC 2016) as the package `fastcdc` computes them, with the sizes
   below. They depend on the bytes alone. The sizes are part of the store's format: other sizes are not wrong, since a
   reader follows the chunk list, but nothing would be shared with what is there.
2. A blob of at most `MAX_SIZE` bytes is not cut. So a chunk list has at least two chunks, and every CAS file is small
   enough to be held in memory.
3. A file is read once, through windows of bounded size. The same bytes in memory are what is hashed, cut and written,
   so a file that changes underneath can give an odd blob, never a blob whose name is wrong. (An mmap would hash and
   write two readings, and a truncation would be a SIGBUS.)
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

#: Sizes of chunks in bytes. MEAN_SIZE is FastCDC's "average"; random bytes give 253 KiB. Part of the format.
MIN_SIZE = 64 << 10
MEAN_SIZE = 256 << 10
MAX_SIZE = 1 << 20

#: How much is read and handed on at once, in bytes.
WINDOW_SIZE = 16 << 20


@dataclass(frozen=True)
class Window:
    """A stretch of a blob, and the same stretch in chunks."""

    data: memoryview
    chunks: tuple[memoryview, ...]


_importing = threading.Lock()


@lru_cache(maxsize=1)
def _cutter() -> Callable[..., Any]:
    # Without its compiled part the package prints a notice to stdout, which belongs to --json. One thread at a time: what
    # two of them redirect and put back crosswise stays redirected.
    with _importing, contextlib.redirect_stdout(io.StringIO()):
        from fastcdc import fastcdc
    return fastcdc


def cut(data: memoryview) -> Iterator[tuple[int, int]]:
    """(offset, length) of each chunk of `data`, lazily. An offset depends on at most `MAX_SIZE` bytes after it."""
    for chunk in _cutter()(data, min_size=MIN_SIZE, avg_size=MEAN_SIZE, max_size=MAX_SIZE):
        yield chunk.offset, chunk.length


def windows_of_bytes(data: memoryview) -> Iterator[Window]:
    """`data` in windows; nothing is copied."""
    start, chunks = 0, []
    for offset, length in cut(data):
        end = offset + length
        chunks.append(data[offset:end])
        if end - start >= WINDOW_SIZE:
            yield Window(data[start:end], tuple(chunks))
            start, chunks = end, []
    if chunks:
        yield Window(data[start:], tuple(chunks))


def windows_of_file(head: bytes | bytearray, rest: BinaryIO) -> Iterator[Window]:
    """`head`, then what `rest` still has, in windows of their own memory. Raises OSError when it cannot be read."""
    carried: bytes | bytearray | memoryview = head
    at_end = False
    while not at_end or carried:
        buffer = memoryview(bytearray(WINDOW_SIZE))
        buffer[: len(carried)] = carried
        filled = len(carried)
        while filled < WINDOW_SIZE and not at_end:
            count = rest.readinto(buffer[filled:])  # type: ignore[attr-defined]
            filled += count
            at_end = count == 0
        done, chunks = 0, []
        for offset, length in cut(buffer[:filled]):
            if not at_end and filled - offset < MAX_SIZE:
                break
            done = offset + length
            chunks.append(buffer[offset:done])
        carried = buffer[done:filled]
        if chunks:
            yield Window(buffer[:done], tuple(chunks))
