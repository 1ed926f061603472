"""Writing blobs that arrive in pieces, the memory that writing and reading takes, and `missing_bytes`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trtbuild.store.local import chunking
from trtbuild.store.local.local import LocalStore
from trtbuild.store.local.publication import Publication

MIB = 1 << 20

#: Prints by how many bytes the memory peak grows while a blob of 192 MiB is read, and while such a blob is written.
_PEAKS_PROGRAM = """
import sys
from pathlib import Path
from trtbuild.driver.workers.worker import _reset_peak_rss, peak_rss_bytes
from trtbuild.store.local.local import LocalStore

def pieces():
    for number in range(192):
        yield number.to_bytes(4, "big") * (1 << 18)

def write(store):
    with store.open_writer() as writer:
        for piece in pieces():
            writer.write(piece)
        return writer.finish()

store = LocalStore(Path(sys.argv[1]) / "store")
write(LocalStore(Path(sys.argv[1]) / "first"))
_reset_peak_rss()
before = peak_rss_bytes()
output = write(store)
written = peak_rss_bytes() - before
_reset_peak_rss()
before = peak_rss_bytes()
data = store.get_bytes(output.sha256)
print(peak_rss_bytes() - before, written)
"""


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB + 3, chunking.WINDOW_SIZE, 2 * chunking.WINDOW_SIZE + 7])
def test_writes_the_chunks_of_put_bytes(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    expected = LocalStore(tmp_path / "whole").put_bytes(data)
    store = LocalStore(tmp_path / "pieces")
    cuts = sorted(random.Random(1).choices(range(size + 1), k=5))
    with store.open_writer() as writer:
        for start, end in zip([0, *cuts], [*cuts, size], strict=True):
            piece = bytearray(data[start:end])
            writer.write(memoryview(piece))
            piece[:] = bytes(len(piece))  # the caller may overwrite the memory after `write`
        assert writer.size == size
        assert writer.finish() == expected
    assert store.get_bytes(expected.sha256) == data
    assert store.files_of(expected.sha256) == LocalStore(tmp_path / "whole").files_of(expected.sha256)


def test_leaves_no_blob_after_an_error(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(20 * MIB)
    store = LocalStore(tmp_path)
    output = LocalStore(tmp_path / "other").put_bytes(data)
    with pytest.raises(ZeroDivisionError), store.open_writer() as writer:
        writer.write(data)
        raise ZeroDivisionError
    assert not store.has(output.sha256)
    assert [*(tmp_path / "tmp").iterdir()] == []


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's record of the memory peak")
def test_reading_holds_a_blob_once_and_writing_holds_a_few_windows(tmp_path: Path, child: Callable[..., Any]) -> None:
    """The blob has 192 MiB. Writing may take four windows of 16 MiB. Both limits allow 64 MiB more, for the threads and
    the allocator.

    The lower bound of the read shows that the peak was measured. It is 1 MiB less than the blob's size, because the
    allocator may reuse memory that was resident before the read.
    """
    read_bytes, written_bytes = map(int, child(_PEAKS_PROGRAM, tmp_path).finish().split())
    assert (192 - 1) * MIB <= read_bytes < (192 + 64) * MIB
    assert written_bytes < (64 + 64) * MIB, "the writer holds more than a few windows"


def test_counts_the_bytes_that_are_missing(tmp_path: Path) -> None:
    known, fresh = random.Random(0).randbytes(5 * MIB), random.Random(1).randbytes(3 * MIB)
    store = LocalStore(tmp_path)
    store.put_bytes(known)
    blobs = [memoryview(known), memoryview(fresh), memoryview(fresh), memoryview(bytes(4 * MIB)), memoryview(b"small")]
    stored = sorted(tmp_path.glob("cas/*/*"))
    # equal chunks count once: the 4 MiB of zeros are four equal chunks of the largest size
    assert store.missing_bytes(blobs) == 3 * MIB + chunking.MAX_SIZE + len(b"small")
    assert sorted(tmp_path.glob("cas/*/*")) == stored, "counting must not write"


def _open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_blobs_that_are_written_at_once_do_not_use_up_the_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk, the chunks wait for the sync. A process may usually have 1024 open files."""
    fsync, write, counts = os.fsync, Publication._write_unsynced, list[int]()

    def sync_slowly(descriptor: int) -> None:
        time.sleep(0.01)
        fsync(descriptor)

    def count_and_write(self: Publication, path: str, data: bytes | memoryview) -> Any:
        counts.append(_open_file_count())
        return write(self, path, data)

    monkeypatch.setattr(os, "fsync", sync_slowly)
    monkeypatch.setattr(Publication, "_write_unsynced", count_and_write)
    before, store = _open_file_count(), LocalStore(tmp_path / "store")
    blobs = [random.Random(number).randbytes(16 * MIB) for number in range(12)]  # each has about 63 chunks
    with ThreadPoolExecutor(len(blobs)) as pool:
        outputs = list(pool.map(store.put_bytes, blobs))
    assert max(counts) - before < 500
    assert all(store.has(output.sha256) for output in outputs)
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
