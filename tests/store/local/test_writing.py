"""Tests of blobs whose bytes arrive in pieces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trtbuild.store.local import chunking
from trtbuild.store.local.local import LocalStore

MIB = 1 << 20


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
            piece[:] = bytes(len(piece))  # the caller may use the memory again
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


def test_counts_the_bytes_that_are_missing(tmp_path: Path) -> None:
    known, fresh = random.Random(0).randbytes(5 * MIB), random.Random(1).randbytes(3 * MIB)
    store = LocalStore(tmp_path)
    store.put_bytes(known)
    blobs = [memoryview(known), memoryview(fresh), memoryview(fresh), memoryview(bytes(4 * MIB)), memoryview(b"small")]
    stored = sorted(path for path in tmp_path.glob("cas/*/*"))
    # equal chunks count once, and the zeros have one chunk of the largest size
    assert store.missing_bytes(blobs) == 3 * MIB + chunking.MAX_SIZE + len(b"small")
    assert sorted(path for path in tmp_path.glob("cas/*/*")) == stored, "counting must not write"
