"""A remote store over any transport, with the contract of core/recipes/ports.py.

`files` handles the files in ``cas/``, and `records` handles the entries in ``ac/``. Their rules apply here. As in the local
store, a large blob is stored as chunks and a list of the chunks.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Trust, TrustAll
from trtbuild.errors import BlobMissing, EntryCorrupt, RemoteLied
from trtbuild.store.local.chunking import MAX_SIZE, Window, windows_of_bytes, windows_of_file
from trtbuild.store.local.local import LocalStore
from trtbuild.store.local.publication import copy_atomically
from trtbuild.store.remote.files import MAX_FILE_SIZE, ReadFile, RemoteFiles, matches_file
from trtbuild.store.remote.records import MAX_ENTRY_SIZE, SETTLE_S, Found, RemoteRecords, document_file
from trtbuild.store.transports.transport import Transport
from trtbuild.store.trust import action_result

__all__ = ["Found", "RemoteStore"]


class RemoteStore:
    """A `Store` (core/recipes/ports.py) over a transport. `name` is the remote's name in the configuration.

    Each method may also raise RemoteFault, which `store.layers.layered` handles.
    """

    def __init__(self, transport: Transport, name: str, trust: Trust | None = None, *, connections: int = 16) -> None:
        self.name = name
        self.transport = transport
        self.trust: Trust = trust or TrustAll()
        self._files = RemoteFiles(transport, name, connections)
        self._records = RemoteRecords(self._files, self.trust)
        self._lock = threading.Lock()
        self._key_locks: dict[str, threading.Lock] = {}

    # -- methods that LayeredStore calls

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The trusted record under a key, or None. Reading is faster if the record's recipe is `wanted`. Raises
        RecordUntrusted."""
        return self._records.find(key, wanted)

    def find_many(self, keys: Iterable[str]) -> Iterator[tuple[str, Found | Exception | None]]:
        """Call `find` for several keys at once. Yields each key with its record, with None, or with the error of `find`."""

        def find_one(key: str) -> tuple[str, Found | Exception | None]:
            try:
                return key, self._records.find(key)
            except Exception as error:  # the lookups of the other keys go on
                return key, error

        return self._files.map_in_parallel(find_one, dict.fromkeys(keys))

    def publish(
        self, found: Found, read: ReadFile, *, keeps_pointers: bool = False, refused: Collection[str] = ()
    ) -> Found:
        """Publish the CAS files of `found`, which `read` returns, and then its record. If another machine's usable record
        stays, returns that record, otherwise `found`. With `keeps_pointers`, an existing pointer record stays (records.py,
        rule 7). A record whose document has a SHA-256 in `refused` does not stay, if the remote allows it.

        Raises the errors of `read`."""
        return self._records.publish(found, read, keeps_pointers=keeps_pointers, refused=refused)

    @property
    def decides_races(self) -> bool:
        """See `Transport.decides_races`."""
        return self.transport.decides_races

    def current_record(self, found: Found) -> Found:
        """The record that is in the remote now: `found`, or another machine's simultaneous record. Call this at least
        `records.SETTLE_S` seconds after `publish`."""
        return self._records.current_record(found)

    def fetch(self, sha256: str, files: Sequence[Output], into: LocalStore) -> int:
        """Fetch those files of a blob that a local store lacks. Returns the number of fetched bytes.

        Raises StoreUnavailable, or BlobMissing if the remote lacks a file. After an error, the files that were already
        fetched stay in the local store.
        """
        fetched = 0
        is_chunked = len(files) != 1 or files[0].sha256 != sha256
        content_hash = hashlib.sha256()
        with into.receive_files() as receiver:
            local_files = receiver.present_files(files)

            def fetch_file(file: Output) -> tuple[bytes | memoryview, int]:
                if file in local_files:
                    data = into.entries.read("cas", file.sha256)
                    if data is not None and matches_file(file, data):
                        return data, 0
                data = self._files.get_existing(file)
                receiver.put(file, data)
                return data, len(data)

            for data, count in self._files.map_in_parallel(fetch_file, files):
                fetched += count
                if is_chunked:
                    content_hash.update(data)
        if is_chunked:
            if content_hash.hexdigest() != sha256:
                raise self._blob_mismatch(sha256)
            into.join_chunks(sha256, files, verified=True)
        return fetched

    def fetch_bytes(self, sha256: str, files: Sequence[Output]) -> bytes:
        """A blob's bytes, verified. Raises BlobMissing."""
        return b"".join(self._read_verified(sha256, files))

    def copy_files(self, sha256: str, files: Sequence[Output], path: str) -> FileStamp | None:
        """Write a blob's verified bytes to `path`, atomically. Raises BlobMissing, OSError."""
        return copy_atomically(self._read_verified(sha256, files), path)

    def _read_verified(self, sha256: str, files: Sequence[Output]) -> Iterator[memoryview]:
        content_hash = hashlib.sha256()
        for data in self._files.map_in_parallel(self._files.get_existing, files):
            content_hash.update(data)
            yield memoryview(data)
        if content_hash.hexdigest() != sha256:
            raise self._blob_mismatch(sha256)

    def _blob_mismatch(self, sha256: str) -> RemoteLied:
        """The error if the chunks together do not have the digest `sha256`."""
        self._files.damaged_digests.add(sha256)
        return self._files.report_lie(f"the chunks that it names are not blob {sha256}")

    def send_files(self, files: Iterable[Output], read: ReadFile) -> None:
        """Send the CAS files that the remote lacks, without a record. Raises the errors of `read`."""
        self._files.send(files, read)

    def repair_files(self, files: Iterable[Output], read: ReadFile) -> bool:
        """Send the CAS files that are missing or damaged in the remote. Returns whether there were any. Reads all files.

        Raises the errors of `read`."""
        return self._files.repair(files, read)

    def close(self) -> None:
        self._files.close()

    # -- the methods of `Store` (core/recipes/ports.py)

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Write a blob, in chunks if it is large."""
        view = memoryview(data).cast("B")
        if len(view) <= MAX_SIZE:
            output = Output(hashlib.sha256(view).hexdigest(), len(view))
            self._files.send([output], lambda file: view)
            return output
        return self._put_large(windows_of_bytes(view))

    def put_file(self, path: str) -> Output:
        """Write a file's bytes. Raises OSError if `path` cannot be read."""
        with open(path, "rb", buffering=0) as file:
            head = bytearray()
            while len(head) <= MAX_SIZE and (more := file.read(MAX_SIZE + 1 - len(head))):
                head += more
            return (
                self.put_bytes(memoryview(head))
                if len(head) <= MAX_SIZE
                else self._put_large(windows_of_file(head, file))
            )

    def _put_large(self, windows: Iterable[Window]) -> Output:
        content_hash, chunks = hashlib.sha256(), list[Output]()
        for window in windows:
            content_hash.update(window.data)
            outputs = [Output(hashlib.sha256(chunk).hexdigest(), len(chunk)) for chunk in window.chunks]
            self._files.send(outputs, dict(zip(outputs, window.chunks, strict=True)).__getitem__)
            chunks += outputs
        sha256 = content_hash.hexdigest()
        entry = action_result.list_entry(sha256, chunks).to_bytes()
        self.transport.put("ac", action_result.list_key(sha256), entry, once=False)
        return Output(sha256, sum(chunk.size for chunk in chunks))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt."""
        with _raise_lies_as_corrupt():
            return self.fetch_bytes(sha256, self._find_files(sha256))

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Raises BlobMissing, EntryCorrupt, or OSError."""
        with _raise_lies_as_corrupt():
            return copy_atomically(self._read_verified(sha256, self._find_files(sha256)), path)

    def has(self, sha256: str) -> bool:
        """Whether the remote has all files of the blob."""
        try:
            files = self._find_files(sha256)
        except (BlobMissing, RemoteLied):
            return False
        return len(files) == 1 or self._files.has_all(files)

    def _find_files(self, sha256: str) -> tuple[Output, ...]:
        """The CAS files of a blob: the blob itself, or the chunks in its chunk list. Raises BlobMissing."""
        data = self.transport.get("cas", sha256, MAX_FILE_SIZE)
        if data is not None:
            return (Output(sha256, len(data)),)
        listed = self.transport.get("ac", action_result.list_key(sha256), MAX_ENTRY_SIZE)
        if listed is None:
            raise BlobMissing(f"blob {sha256} is not in {self.name}")
        try:
            return action_result.parse_chunk_list(listed, sha256)
        except ValueError as error:
            raise self._files.report_lie(f"the chunk list of {sha256}: {error}") from error

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None. Raises EntryCorrupt, RecordUntrusted."""
        with _raise_lies_as_corrupt():
            found = self.find(key, wanted)
        return None if found is None else found.record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """The `keys` that have an entry."""
        all_keys = list(keys)
        results = self._files.map_in_parallel(lambda key: self.transport.has("ac", key), all_keys)
        return {key for key, has_entry in zip(all_keys, results, strict=True) if has_entry}

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Sign and publish a record. The remote must have its blobs. Returns the record that is in the remote afterwards.

        Raises BlobMissing, or EntryCorrupt for an invalid chunk list."""
        files_by_blob = {}
        for output in record.outputs.values():
            with _raise_lies_as_corrupt():
                files_by_blob[output.sha256] = self._find_files(output.sha256)
            if not self._files.has_all(files_by_blob[output.sha256]):
                raise BlobMissing(f"blob {output.sha256} is not whole in {self.name}")
        text = record.to_bytes()
        document = document_file(text)
        self._files.send([document], lambda file: text)
        found = Found(
            record, text, self.trust.sendable_signatures(self.trust.sign(record.recipe.key, document)), files_by_blob
        )
        published = self._records.write_entry(found, self._files.get_existing, replace=replace)
        if published is found and not (replace or self.decides_races):
            time.sleep(SETTLE_S)
            published = self.current_record(found)
        return published.record

    def session(self) -> AbstractContextManager[None]:
        """Does nothing. A collection may remove files meanwhile: a missing file is a miss."""
        return nullcontext()

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`. It excludes only other threads of this process."""
        with self._lock:
            lock = self._key_locks.setdefault(key, threading.Lock())
        with lock:
            yield


@contextmanager
def _raise_lies_as_corrupt() -> Iterator[None]:
    """Raise EntryCorrupt instead of RemoteLied."""
    try:
        yield
    except RemoteLied as lie:
        raise EntryCorrupt(lie.text) from lie
