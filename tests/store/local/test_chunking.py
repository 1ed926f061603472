"""The boundaries of a blob's chunks, and the import of fastcdc."""

from __future__ import annotations

import io
import random
import subprocess
import sys

import pytest

from trtbuild.store.local import chunking
from trtbuild.store.local.chunking import MAX_SIZE, MIN_SIZE, chunk_bounds, windows_of_bytes, windows_of_file

MIB = 1 << 20


def lengths(data: bytes) -> list[int]:
    return [length for _, length in chunk_bounds(memoryview(data))]


def test_the_boundaries_in_known_bytes_never_change() -> None:
    """The boundaries are part of the format. With other boundaries, new blobs would share no chunks with stored ones."""
    data = random.Random(20240229).randbytes(4 * MIB)
    sizes = lengths(data)
    assert sum(sizes) == len(data)
    assert sizes == KNOWN_SIZES


# fmt: off
KNOWN_SIZES = [
    108544, 78079, 170703, 127961, 95269, 261219,
    270888, 268965, 510572, 270597, 351161, 133246,
    238050, 182821, 191606, 208311, 220369, 280784,
    225159,
]
# fmt: on


def test_boundaries_are_the_same_in_another_process() -> None:
    code = (
        "import random; from trtbuild.store.local.chunking import chunk_bounds;"
        "print([length for _, length in chunk_bounds(memoryview(random.Random(5).randbytes(3 << 20)))])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == str(lengths(random.Random(5).randbytes(3 * MIB)))


def test_the_pure_python_implementation_has_the_same_boundaries() -> None:
    """fastcdc uses this implementation where its compiled part is missing."""
    from fastcdc.fastcdc_py import fastcdc_py

    data = random.Random(6).randbytes(MIB + 9)
    slow = fastcdc_py(data, min_size=MIN_SIZE, avg_size=chunking.MEAN_SIZE, max_size=MAX_SIZE)
    assert [chunk.length for chunk in slow] == lengths(data)


def test_sizes_are_within_their_limits() -> None:
    sizes = lengths(random.Random(7).randbytes(8 * MIB))
    assert all(MIN_SIZE < length <= MAX_SIZE for length in sizes[:-1])


def test_zeros_give_equal_chunks() -> None:
    assert set(lengths(bytes(8 * MIB))) == {MAX_SIZE}


def test_an_insertion_changes_few_chunks() -> None:
    data = random.Random(8).randbytes(16 * MIB)
    edited = data[: 5 * MIB] + b"inserted" + data[5 * MIB :]

    def chunks(blob: bytes) -> set[bytes]:
        return {blob[start : start + length] for start, length in chunk_bounds(memoryview(blob))}

    assert len(chunks(edited) - chunks(data)) <= 3


@pytest.mark.parametrize("size", [2 * MIB, 16 * MIB + 1, 21 * MIB + 123])
@pytest.mark.parametrize("read_size", [None, 700_001])
def test_windows_do_not_change_the_chunks(size: int, read_size: int | None) -> None:
    """The chunks are the same for a file in windows (pieces of about 16 MiB), for bytes in windows, and for bytes in one
    piece. `read_size` is the largest number of bytes that one read of the file returns."""
    data = random.Random(size).randbytes(size)
    file = ShortReads(data[MIB + 1 :], read_size) if read_size else io.BytesIO(data[MIB + 1 :])
    of_file = list(windows_of_file(data[: MIB + 1], file))
    of_bytes = list(windows_of_bytes(memoryview(data)))
    assert b"".join(window.data for window in of_file) == b"".join(window.data for window in of_bytes) == data
    for windows in (of_file, of_bytes):
        assert [len(chunk) for window in windows for chunk in window.chunks] == lengths(data)
        assert all(b"".join(window.chunks) == window.data for window in windows)


class ShortReads(io.BytesIO):
    """A file whose reads return at most `limit` bytes."""

    def __init__(self, data: bytes, limit: int) -> None:
        super().__init__(data)
        self._limit = limit

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return super().readinto(buffer[: self._limit])


def test_importing_fastcdc_prints_nothing() -> None:
    code = (  # fastcdc has no compiled part here
        "import sys; sys.modules['fastcdc.fastcdc_cy'] = None;"
        "from trtbuild.store.local.chunking import chunk_bounds; list(chunk_bounds(memoryview(bytes(100))))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == ""


def test_threads_that_import_fastcdc_at_once_restore_standard_output() -> None:
    program = """
import sys, threading
sys.setswitchinterval(1e-6)
from trtbuild.store.local import chunking
before, barrier = sys.stdout, threading.Barrier(8)
def import_at_once():
    barrier.wait()
    chunking._import_fastcdc()
for _ in range(20):
    chunking._import_fastcdc.cache_clear()
    threads = [threading.Thread(target=import_at_once) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sys.stdout is before
print("right")
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == "right\n"
