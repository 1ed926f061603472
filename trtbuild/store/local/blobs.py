"""Writes, finds and reads the blobs of a local store. The rules are in local.py."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.record import Output
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.store.local.chunking import MAX_SIZE, windows_of_bytes, windows_of_file
from trtbuild.store.local.entries import Entries
from trtbuild.store.local.publication import copy_atomically
from trtbuild.store.local.receiving import FileReceiver, open_receiver
from trtbuild.store.local.writing import BlobWriter, missing_bytes, put_small, put_windows
from trtbuild.store.trust import action_result

# A blob is read, hashed and yielded in batches of its files. A batch has at most this many bytes, or is a single larger
# file. This size fits into a CPU's second-level cache. Batches of 2 MiB take twice as much time in the kernel.
_BATCH_SIZE = 512 << 10
# The number of batches that may wait for their hash, each in its own buffer.
_BUFFER_COUNT = 2
# `get_bytes` reads a blob at once, without batches, if it is a single file with at most this many bytes.
_SMALL_SIZE = 256 << 10


class LocalBlobs:
    """A `BlobStore` (core/recipes/ports.py) in the directory `root`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.entries = Entries(str(self.root))

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Write `data`, atomically. The blob is durable when this method returns. Raises StoreUnavailable."""
        self.entries.is_read_only = False
        view = memoryview(data).cast("B")
        if len(view) <= MAX_SIZE:
            return put_small(self.entries, view)
        return put_windows(self.entries, windows_of_bytes(view), self._write_list)

    def put_file(self, path: str) -> Output:
        """Write the bytes of a file, which is read once. Raises StoreUnavailable, or OSError when `path` cannot be read."""
        self.entries.is_read_only = False
        with open(path, "rb", buffering=0) as file:
            head = bytearray()
            # One byte more than `MAX_SIZE` means that the blob must be split.
            while len(head) <= MAX_SIZE and (more := file.read(MAX_SIZE + 1 - len(head))):
                head += more
            if len(head) <= MAX_SIZE:
                return put_small(self.entries, memoryview(head))
            return put_windows(self.entries, windows_of_file(head, file), self._write_list)

    def open_writer(self) -> BlobWriter:
        """Return a writer of a blob whose bytes arrive in pieces."""
        self.entries.is_read_only = False
        return BlobWriter(self.entries, self._write_list)

    def missing_bytes(self, blobs: Iterable[memoryview]) -> int:
        """The number of bytes by which the store's files would grow if all `blobs` were stored. Reads all blobs, and writes
        nothing. Raises StoreUnavailable."""
        return missing_bytes(self.entries, blobs)

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        files = self.files_of(sha256)
        size = sum(file.size for file in files)
        if len(files) == 1 and size <= _SMALL_SIZE:
            data = self.entries.read("cas", sha256)
            if data is not None and hashlib.sha256(data).hexdigest() == sha256:
                return data
            # The code below reads the file again, and raises the error.
        buffer = io.BytesIO()
        if size:  # allocate all bytes at once
            buffer.seek(size - 1)
            buffer.write(b"\0")
        with buffer.getbuffer() as view:
            deque(self._read_verified(sha256, files, _consecutive_buffers(view)), maxlen=0)
        # `getvalue` does not copy, because the buffer has exactly the blob's size and no slice of it exists any more. (With
        # a `for` loop above, the loop's variable would keep the last slice.)
        return buffer.getvalue()

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp, by which later builds recognize the
        file (publication.py, rule 4).

        Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError when `path` cannot be written.
        """
        return copy_atomically(self._read_verified(sha256, self.files_of(sha256), _alternating_buffers()), path)

    def has(self, sha256: str) -> bool:
        """Whether all files of the blob are in the store. Their bytes are not read. Raises StoreUnavailable."""
        with self.entries.lookup_lock():
            return self.find_files(sha256) is not None

    def files_of(self, sha256: str) -> tuple[Output, ...]:
        """The CAS files that the blob consists of, in order: the blob itself, or its chunks.

        Raises StoreUnavailable, or BlobMissing when one of these files is missing.
        """
        with self.entries.lookup_lock():
            files = self.find_files(sha256)
        if files is None:
            raise BlobMissing(f"blob {sha256} is not in the store {self.root}")
        return files

    def receive_files(self) -> AbstractContextManager[FileReceiver]:
        """Receive CAS files from another store, in a `with` block. The files are durable at the end of the block. Raises
        StoreUnavailable there."""
        self.entries.is_read_only = False
        return open_receiver(self.entries)

    def join_chunks(self, sha256: str, chunks: Sequence[Output], *, verified: bool = False) -> Output:
        """Create a blob from two or more chunks that are in the store.

        The chunks are read and hashed, unless the caller has just computed the blob's digest from them (`verified`).

        Raises ValueError for fewer than two chunks, BlobMissing when a chunk is missing, EntryCorrupt when the chunks are
        not the blob, or StoreUnavailable.
        """
        if len(chunks) < 2:
            raise ValueError("a blob has at least two chunks, or none")
        self.entries.is_read_only = False
        with self.entries.lock.shared():
            for chunk in chunks:
                if self.entries.find("cas", chunk.sha256) != chunk.size:
                    raise BlobMissing(f"chunk {chunk.sha256} is not in the store {self.root}")
            is_listed = verified and self._read_chunk_list(sha256) == tuple(chunks)
        if not verified:
            self._verify_chunks(sha256, chunks)
        if not is_listed:
            entry = action_result.list_entry(sha256, chunks)
            self.entries.write("ac", action_result.list_key(sha256), entry.to_bytes())
        return Output(sha256, sum(chunk.size for chunk in chunks))

    def _verify_chunks(self, sha256: str, chunks: Sequence[Output]) -> None:
        content_hash = hashlib.sha256()
        scratch = memoryview(bytearray(max(chunk.size for chunk in chunks)))
        for chunk in chunks:
            self.entries.read_into(chunk, scratch[: chunk.size])
            content_hash.update(scratch[: chunk.size])
        if content_hash.hexdigest() != sha256:
            raise EntryCorrupt(f"the chunks that were given are not blob {sha256}")

    def find_files(self, sha256: str) -> tuple[Output, ...] | None:
        """Like `files_of`, but returns None if a file is missing. The caller holds `Entries.lookup_lock`."""
        size = self.entries.find("cas", sha256)
        if size is not None:
            return (Output(sha256, size),)
        chunks = self._read_chunk_list(sha256)
        if chunks is None or any(self.entries.find("cas", chunk.sha256) != chunk.size for chunk in chunks):
            return None
        return chunks

    def _read_chunk_list(self, sha256: str) -> tuple[Output, ...] | None:
        key = action_result.list_key(sha256)
        if self.entries.find("ac", key) is None:
            return None
        data = self.entries.read("ac", key)
        if data is None:
            return None
        try:
            return action_result.parse_chunk_list(data, sha256)
        except ValueError as error:
            # The blob counts as missing. The next `put_bytes` or `put_file` writes a new list.
            self.entries.quarantine("ac", key, f"chunk list of {sha256}: {error}")
            return None

    def _write_list(self, sha256: str, chunks: Sequence[Output]) -> None:
        with self.entries.lock.shared():
            is_listed = self._read_chunk_list(sha256) == tuple(chunks)
        if not is_listed:
            entry = action_result.list_entry(sha256, chunks)
            self.entries.write("ac", action_result.list_key(sha256), entry.to_bytes())

    def _read_verified(
        self, sha256: str, files: Sequence[Output], next_buffer: Callable[[int], memoryview]
    ) -> Iterator[memoryview]:
        """Yield the blob in batches. If the blob has several files, another thread hashes the batches. `next_buffer` is a
        function of the size of the next batch, and returns a buffer for the batch.

        Raises EntryCorrupt after the last batch if the blob's digest is not `sha256`.
        """
        content_hash = hashlib.sha256()
        running_hashes: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1) as hasher:
            for batch in _group_into_batches(files):
                if len(running_hashes) >= _BUFFER_COUNT:
                    running_hashes.popleft().result()
                view, start = next_buffer(sum(file.size for file in batch)), 0
                for file in batch:
                    self.entries.read_into(file, view[start : start + file.size])
                    start += file.size
                if len(files) == 1:
                    content_hash.update(view)
                else:
                    running_hashes.append(hasher.submit(content_hash.update, view))
                yield view
        if content_hash.hexdigest() != sha256:
            raise self._quarantine_damage(sha256, files)

    def _quarantine_damage(self, sha256: str, files: Sequence[Output]) -> EntryCorrupt:
        """Move the damaged files of a blob to quarantine, or its chunk list if no file is damaged. Returns the error to
        raise."""
        undamaged = [self.entries.verify_file(file) for file in files]
        # If the blob is one file, and it is undamaged now, another process has just replaced it.
        if all(undamaged) and len(files) > 1:
            self.entries.quarantine("ac", action_result.list_key(sha256), f"its chunks are not {sha256}")
        return EntryCorrupt(f"blob {sha256} does not match its digest; the damaged files are in quarantine")


def _group_into_batches(files: Sequence[Output]) -> Iterator[list[Output]]:
    batch: list[Output] = []
    size = 0
    for file in files:
        if batch and size + file.size > _BATCH_SIZE:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    yield batch


def _consecutive_buffers(view: memoryview) -> Callable[[int], memoryview]:
    """Return a function of a size, which returns the next slice of `view` with this size."""
    start = 0

    def next_buffer(size: int) -> memoryview:
        nonlocal start
        start += size
        return view[start - size : start]

    return next_buffer


def _alternating_buffers() -> Callable[[int], memoryview]:
    """Return a function of a size, which returns memory of this size. It uses `_BUFFER_COUNT` buffers in turn."""
    buffers = [bytearray() for _ in range(_BUFFER_COUNT)]
    turn = 0

    def next_buffer(size: int) -> memoryview:
        nonlocal turn
        turn = (turn + 1) % _BUFFER_COUNT
        if len(buffers[turn]) < size:
            buffers[turn] = bytearray(size)
        return memoryview(buffers[turn])[:size]

    return next_buffer
