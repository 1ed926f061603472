"""Content-defined chunking: splits large blobs so that blobs with equal parts share chunks.

Rules
1. The boundaries follow FastCDC (Xia et al., USENIX ATC 2016). The package `fastcdc` computes them with the sizes
   below. The boundaries depend only on the bytes. The sizes are part of the store's format. With other sizes a reader still
   works, because it follows the chunk list, but no chunk is shared with older blobs.
2. A blob of at most `MAX_SIZE` bytes is not split. So a chunk list has at least two chunks, and every CAS file is small
   enough for memory.
3. A file is read once, through windows of bounded size. The same bytes in memory are hashed, split and written. A file that
   changes while it is read may give a blob with a mixture of old and new bytes, but never a blob with a wrong name. (With
   mmap, the hash and the written bytes could differ, and a truncation would raise SIGBUS.)
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

#: Bytes that are read and yielded at once.
WINDOW_SIZE = 16 << 20


@dataclass(frozen=True)
class Window:
    """A part of a blob, and the same part in chunks."""

    data: memoryview
    chunks: tuple[memoryview, ...]


_importing = threading.Lock()


@lru_cache(maxsize=1)
def _cutter() -> Callable[..., Any]:
    # Without its compiled part the package prints a notice to stdout, where only the --json document may be. The lock is
    # necessary because two threads that redirect stdout at once could leave it redirected.
    with _importing, contextlib.redirect_stdout(io.StringIO()):
        from fastcdc import fastcdc
    cutter: Callable[..., Any] = fastcdc
    return cutter


def cut(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) of each chunk of `data`. A chunk depends on at most `MAX_SIZE` bytes after its offset."""
    for chunk in _cutter()(data, min_size=MIN_SIZE, avg_size=MEAN_SIZE, max_size=MAX_SIZE):
        yield chunk.offset, chunk.length


def windows_of_bytes(data: memoryview) -> Iterator[Window]:
    """Yield `data` in windows, without copying."""
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
    """Yield `head`, and then the rest of the file `rest`, in windows that own their memory. Raises OSError."""
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
