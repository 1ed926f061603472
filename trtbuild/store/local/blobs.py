"""Writing, finding and reading the blobs of a local store. The rules are in local.py."""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.record import Output
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.store.local.chunking import MAX_SIZE, Window, windows_of_bytes, windows_of_file
from trtbuild.store.local.entries import Entries
from trtbuild.store.local.publication import Publication, copy_atomically
from trtbuild.store.local.receiving import Receipt, receiving
from trtbuild.store.trust import action_result

# Threads that hash and write chunks: SHA-256 runs without the GIL, and fsync waits. More threads are not faster.
_WRITERS = min(8, (os.cpu_count() or 1) + 2)

# A blob is read, hashed and yielded in stretches of this many bytes: they fit into a second-level cache (with 2 MiB the
# kernel takes twice the time).
_STRETCH_SIZE = 512 << 10
# The number of stretches that may wait for their hash.
_AHEAD = 2
# A blob of at most this many bytes is read and hashed by the calling thread.
_SMALL_SIZE = 256 << 10


class LocalBlobs:
    """The `BlobStore` of core/recipes/ports.py in the directory `root`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.entries = Entries(str(self.root))

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Write `data`, atomically. It is durable when this returns. Raises StoreUnavailable."""
        self.entries.only_reads = False
        view = memoryview(data).cast("B")
        return self._put_small(view) if len(view) <= MAX_SIZE else self._put_large(windows_of_bytes(view))

    def put_file(self, path: str) -> Output:
        """Write the bytes of a file, which is read once. Raises StoreUnavailable, or OSError when `path` cannot be read."""
        self.entries.only_reads = False
        with open(path, "rb", buffering=0) as file:
            head = bytearray()
            while len(head) <= MAX_SIZE and (more := file.read(MAX_SIZE + 1 - len(head))):
                head += more
            if len(head) <= MAX_SIZE:
                return self._put_small(memoryview(head))
            return self._put_large(windows_of_file(head, file))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        parts = self.parts(sha256)
        size = sum(part.size for part in parts)
        if len(parts) == 1 and size <= _SMALL_SIZE:
            data = self.entries.read("cas", sha256)
            if data is not None and hashlib.sha256(data).hexdigest() == sha256:
                return data
        buffer = io.BytesIO()
        if size:
            buffer.seek(size - 1)
            buffer.write(b"\0")
        with buffer.getbuffer() as view:
            for _ in self._verified(sha256, parts, _consecutive(view)):
                pass
        return buffer.getvalue()  # no copy is made: the buffer has exactly this size

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp (publication.py, rule 4).

        Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError when `path` cannot be written.
        """
        return copy_atomically(self._verified(sha256, self.parts(sha256), _in_turns()), path)

    def has(self, sha256: str) -> bool:
        """Whether all parts of the blob are in the store. Their bytes are not read. Raises StoreUnavailable."""
        with self.entries.looking():
            return self.find_parts(sha256) is not None

    def parts(self, sha256: str) -> tuple[Output, ...]:
        """The CAS files that the blob consists of, in order: the blob itself, or its chunks.

        Raises BlobMissing when one of these files is missing, StoreUnavailable.
        """
        with self.entries.looking():
            parts = self.find_parts(sha256)
        if parts is None:
            raise BlobMissing(f"blob {sha256} is not in the store {self.root}")
        return parts

    def receiving(self) -> AbstractContextManager[Receipt]:
        """Receive CAS files from another store. They are durable at the end of the block, which raises StoreUnavailable."""
        self.entries.only_reads = False
        return receiving(self.entries)

    def join(self, sha256: str, chunks: Sequence[Output], *, verified: bool = False) -> Output:
        """Create a blob from two or more chunks that are in the store. The chunks are read and hashed, unless `verified` is
        True: the caller has just computed the blob's digest from them.

        Raises BlobMissing when a chunk is missing, EntryCorrupt when the chunks are not the blob, StoreUnavailable.
        """
        if len(chunks) < 2:
            raise ValueError("a blob has at least two chunks, or none")
        self.entries.only_reads = False
        with self.entries.lock.shared():
            for chunk in chunks:
                if self.entries.find("cas", chunk.sha256) != chunk.size:
                    raise BlobMissing(f"chunk {chunk.sha256} is not in the store {self.root}")
            listed = verified and self._read_chunk_list(sha256) == tuple(chunks)
        if not verified:
            self._verify_chunks(sha256, chunks)
        if not listed:
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

    def find_parts(self, sha256: str) -> tuple[Output, ...] | None:
        """Like `parts`, but returns None if a part is missing. The caller holds the store-wide lock."""
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
            return action_result.listed_chunks(data, sha256)
        except ValueError as error:
            # A blob with an invalid list counts as missing: the next put writes a new list.
            self.entries.quarantine("ac", key, f"chunk list of {sha256}: {error}")
            return None

    def _put_small(self, view: memoryview) -> Output:
        output = Output(hashlib.sha256(view).hexdigest(), len(view))
        publication = Publication(self.entries.layout)
        self._put_part(publication, output, publication.write, view)
        publication.settle()
        return output

    def _put_part(
        self, publication: Publication, part: Output, write: Callable[[str, memoryview], None], view: memoryview
    ) -> None:
        path = self.entries.layout.entry("cas", part.sha256)
        with self.entries.lock.shared():
            found = self.entries.find("cas", part.sha256) == part.size
        if found:
            publication.also(os.path.dirname(path))
        else:
            self.entries.prepare()
            write(path, view)

    def _put_large(self, windows: Iterable[Window]) -> Output:
        content_hash, size = hashlib.sha256(), 0
        publication = Publication(self.entries.layout)
        chunks: list[Output] = []

        def put_chunk(chunk: memoryview) -> Output:
            part = Output(hashlib.sha256(chunk).hexdigest(), len(chunk))
            self._put_part(publication, part, publication.gather, chunk)
            return part

        with ThreadPoolExecutor(_WRITERS) as writers, ThreadPoolExecutor(1) as hasher:
            waiting: deque[tuple[Future[None], list[Future[Output]]]] = deque()

            def finish_one() -> None:
                hashed, written = waiting.popleft()
                chunks.extend(future.result() for future in written)
                hashed.result()

            try:
                for window in windows:
                    size += len(window.data)
                    hashed = hasher.submit(content_hash.update, window.data)
                    waiting.append((hashed, [writers.submit(put_chunk, chunk) for chunk in window.chunks]))
                    if len(waiting) > 2:  # so that only a few windows are in memory
                        finish_one()
                while waiting:
                    finish_one()
            except BaseException:
                writers.shutdown(cancel_futures=True)
                publication.abandon()
                raise
            publication.settle(writers)
        output = Output(content_hash.hexdigest(), size)
        with self.entries.lock.shared():
            listed = self._read_chunk_list(output.sha256)
        if listed != tuple(chunks):
            entry = action_result.list_entry(output.sha256, chunks)
            self.entries.write("ac", action_result.list_key(output.sha256), entry.to_bytes())
        return output

    def _verified(
        self, sha256: str, parts: Sequence[Output], place: Callable[[int], memoryview]
    ) -> Iterator[memoryview]:
        """Yield the blob in stretches, while another thread hashes them. `place` returns the buffer for a stretch of a
        size.

        Raises EntryCorrupt after the last stretch if the blob's digest is not `sha256`.
        """
        content_hash = hashlib.sha256()
        hashing: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1) as hasher:
            for stretch in _stretches(parts):
                if len(hashing) >= _AHEAD:
                    hashing.popleft().result()
                view, start = place(sum(part.size for part in stretch)), 0
                for part in stretch:
                    self.entries.read_into(part, view[start : start + part.size])
                    start += part.size
                if len(parts) == 1:
                    content_hash.update(view)
                else:
                    hashing.append(hasher.submit(content_hash.update, view))
                yield view
        if content_hash.hexdigest() != sha256:
            raise self._quarantine_damage(sha256, parts)

    def _quarantine_damage(self, sha256: str, parts: Sequence[Output]) -> EntryCorrupt:
        """Move the damaged parts of a blob to quarantine. If no part is damaged, move its chunk list. Returns the error to
        raise."""
        undamaged = [self.entries.verify_part(part) for part in parts]
        if all(undamaged):
            self.entries.quarantine("ac", action_result.list_key(sha256), f"its chunks are not {sha256}")
        return EntryCorrupt(f"blob {sha256} does not match its digest; the damaged files are in quarantine")


def _stretches(parts: Sequence[Output]) -> Iterator[list[Output]]:
    """Group `parts`, in order. A group has at most `_STRETCH_SIZE` bytes, or is a single larger part."""
    stretch: list[Output] = []
    size = 0
    for part in parts:
        if stretch and size + part.size > _STRETCH_SIZE:
            yield stretch
            stretch, size = [], 0
        stretch.append(part)
        size += part.size
    yield stretch


def _consecutive(view: memoryview) -> Callable[[int], memoryview]:
    """A function that returns consecutive parts of `view`."""
    start = 0

    def place(size: int) -> memoryview:
        nonlocal start
        start += size
        return view[start - size : start]

    return place


def _in_turns() -> Callable[[int], memoryview]:
    """A function that returns parts of `_AHEAD` buffers, in turn."""
    buffers = [bytearray() for _ in range(_AHEAD)]
    turn = 0

    def place(size: int) -> memoryview:
        nonlocal turn
        turn = (turn + 1) % _AHEAD
        if len(buffers[turn]) < size:
            buffers[turn] = bytearray(size)
        return memoryview(buffers[turn])[:size]

    return place
