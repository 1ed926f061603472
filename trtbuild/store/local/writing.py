"""Writes blobs as CAS files, from memory, from a file, or from pieces that arrive one by one. The rules are in local.py."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from trtbuild.core.recipes.record import Output
from trtbuild.store.local.chunking import MAX_SIZE, Window, WindowCutter, chunk_bounds
from trtbuild.store.local.entries import Entries
from trtbuild.store.local.publication import Publication

# The number of windows (pieces of a blob, of about 16 MiB) whose chunks may be unwritten at the same time.
_MAX_WAITING_WINDOWS = 2

# The number of threads that hash (without the GIL) and write chunks. More threads are not faster.
_WRITER_COUNT = min(8, (os.cpu_count() or 1) + 2)

#: A function of a blob's SHA-256 and its chunks. It writes the chunk list, unless the store has it.
WriteList = Callable[[str, Sequence[Output]], None]


def put_small(entries: Entries, view: memoryview) -> Output:
    """Write a blob that is one CAS file, durably. Raises StoreUnavailable."""
    output = Output(hashlib.sha256(view).hexdigest(), len(view))
    publication = Publication(entries.layout)
    _put_cas_file(entries, publication, output, publication.write, view)
    publication.make_durable()
    return output


def put_windows(entries: Entries, windows: Iterable[Window], write_list: WriteList) -> Output:
    """Write a blob that has several chunks, durably. Raises StoreUnavailable."""
    with _ChunkWriter(entries, write_list) as chunks:
        for window in windows:
            chunks.add(window)
        return chunks.finish()


def missing_bytes(entries: Entries, blobs: Iterable[memoryview]) -> int:
    """The total size of the CAS files of `blobs` that the store does not have yet. Reads and hashes all blobs. Raises
    StoreUnavailable."""
    seen: set[str] = set()
    total = 0
    for view in blobs:
        for start, length in [(0, len(view))] if len(view) <= MAX_SIZE else chunk_bounds(view):
            sha256 = hashlib.sha256(view[start : start + length]).hexdigest()
            if sha256 not in seen:
                seen.add(sha256)
                with entries.lookup_lock():
                    if entries.find("cas", sha256) != length:
                        total += length
    return total


def _put_cas_file(
    entries: Entries, publication: Publication, file: Output, write: Callable[[str, memoryview], None], view: memoryview
) -> None:
    """Write a CAS file by `write`, a method of `publication`, unless the store has the file. Raises StoreUnavailable."""
    path = entries.layout.entry_path("cas", file.sha256)
    with entries.lock.shared():
        is_present = entries.find("cas", file.sha256) == file.size
    if is_present:
        publication.add_folder(os.path.dirname(path))  # because the file's writer may not have synced the directory yet
    else:
        entries.prepare()
        write(path, view)


class _ChunkWriter:
    """Writes the chunks of one blob in several threads. Only a few windows are in memory at any time.

    Without `finish` there is no blob, but chunks that are already published stay in the store.
    """

    def __init__(self, entries: Entries, write_list: WriteList) -> None:
        self._entries = entries
        self._write_list = write_list
        self._publication = Publication(entries.layout)
        self._content_hash, self._size = hashlib.sha256(), 0
        self._chunks: list[Output] = []
        #: For each window that may have unwritten chunks: the hashing of the window, and the writing of its chunks.
        self._waiting: deque[tuple[Future[None], list[Future[Output]]]] = deque()
        self._writers, self._hasher = ThreadPoolExecutor(_WRITER_COUNT), ThreadPoolExecutor(1)
        self._is_finished = False

    def add(self, window: Window) -> None:
        """Write the next window. Its memory must not change afterwards. Raises StoreUnavailable."""
        self._size += len(window.data)
        hashed = self._hasher.submit(self._content_hash.update, window.data)
        self._waiting.append((hashed, [self._writers.submit(self._put_chunk, chunk) for chunk in window.chunks]))
        if len(self._waiting) > _MAX_WAITING_WINDOWS:
            self._finish_oldest_window()

    def finish(self) -> Output:
        """Publish the blob, durably. Raises StoreUnavailable."""
        while self._waiting:
            self._finish_oldest_window()
        self._is_finished = True
        self._publication.make_durable(self._writers)
        output = Output(self._content_hash.hexdigest(), self._size)
        self._write_list(output.sha256, self._chunks)
        return output

    def _put_chunk(self, chunk: memoryview) -> Output:
        file = Output(hashlib.sha256(chunk).hexdigest(), len(chunk))
        _put_cas_file(self._entries, self._publication, file, self._publication.write_in_batch, chunk)
        return file

    def _finish_oldest_window(self) -> None:
        hashed, written = self._waiting.popleft()
        self._chunks.extend(future.result() for future in written)
        hashed.result()

    def __enter__(self) -> _ChunkWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)
        if not self._is_finished:
            self._publication.abandon()


class BlobWriter:
    """Writes one blob whose bytes arrive in pieces: ``with store.open_writer() as writer: …; writer.finish()``.

    Without `finish` there is no blob. One thread at a time may use a writer.
    """

    def __init__(self, entries: Entries, write_list: WriteList) -> None:
        self._entries = entries
        self._chunks = _ChunkWriter(entries, write_list)
        self._cutter = WindowCutter()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add `data` to the blob. The memory of `data` may change after the call. Raises StoreUnavailable."""
        view = memoryview(data).cast("B")
        while view:
            room = self._cutter.room
            count = min(len(view), len(room))
            room[:count] = view[:count]
            view = view[count:]
            self.size += count
            window = self._cutter.advance(count)
            if window is not None:
                self._chunks.add(window)

    def finish(self) -> Output:
        """Publish the blob, durably. Raises StoreUnavailable."""
        window = self._cutter.finish()
        if self.size <= MAX_SIZE:
            return put_small(self._entries, memoryview(b"") if window is None else window.data)
        if window is not None:
            self._chunks.add(window)
        return self._chunks.finish()

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._chunks.__exit__(kind, error, tb)
