"""A store in memory, with the contract of `trtbuild.core.recipes.ports`.

A read checks a blob against its digest, and a record against its key. So a test can damage `blobs` and `records`. There is
no garbage collection.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature, Trust, TrustAll, domain_key, lookup_keys
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.local.publication import copy_atomically


class _Writer:
    """Like `BlobWriter` of the local store, but in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def finish(self) -> Output:
        return self._store.put_bytes(memoryview(self._data))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class MemoryStore:
    """A `Store` (core/recipes/ports.py) in the memory of this process."""

    def __init__(self, trust: Trust | None = None) -> None:
        self.trust: Trust = trust or TrustAll()
        self.blobs: dict[str, bytes] = {}
        #: The record's key, or a `domain_key` of it → the document of the record, and its signatures.
        self.records: dict[str, bytes] = {}
        self.signatures: dict[str, tuple[Signature, ...]] = {}
        #: ("cas" or "ac", name) → the bytes of a corrupt entry.
        self.quarantine: dict[tuple[str, str], bytes] = {}
        self._lock = threading.RLock()
        self._building: dict[str, threading.Lock] = {}

    def put_bytes(self, data: bytes | memoryview) -> Output:
        stored = bytes(data)
        output = Output(hashlib.sha256(stored).hexdigest(), len(stored))
        with self._lock:
            existing = self.blobs.get(output.sha256)
            if existing is None or len(existing) != output.size:  # a damaged blob of the wrong size is replaced
                self.blobs[output.sha256] = stored
        return output

    def put_file(self, path: str) -> Output:
        """Store a file's bytes. Raises OSError when `path` cannot be read."""
        return self.put_bytes(Path(path).read_bytes())

    def open_writer(self) -> _Writer:
        """A writer of a blob whose bytes arrive in pieces."""
        return _Writer(self)

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing or EntryCorrupt."""
        with self._lock:
            data = self.blobs.get(sha256)
            if data is None:
                raise BlobMissing(f"blob {sha256} is not in this store")
            if hashlib.sha256(data).hexdigest() != sha256:
                self.quarantine["cas", sha256] = self.blobs.pop(sha256)
                raise EntryCorrupt(f"blob {sha256} does not match its digest")
            return data

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Raises BlobMissing, EntryCorrupt, or OSError."""
        return copy_atomically([memoryview(self.get_bytes(sha256))], path)

    def has(self, sha256: str) -> bool:
        """Whether the store has the blob. Its bytes are not read."""
        return sha256 in self.blobs

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None. Reading is faster if the record has the `wanted` recipe.

        A corrupt record is moved to quarantine. Without a trusted record, the first error is raised: EntryCorrupt or
        RecordUntrusted.
        """
        with self._lock:
            return self._first_trusted(key, wanted)[1]

    def _first_trusted(self, key: str, wanted: Recipe | None) -> tuple[str, Record | None]:
        """Return the key in `records` of the first trusted record, and this record. If there is no record: `key` and None.

        If no record is trusted, the first EntryCorrupt or RecordUntrusted is raised."""
        problem: EntryCorrupt | RecordUntrusted | None = None
        for name in lookup_keys(self.trust, key):
            try:
                record = self._read(name, key, wanted)
            except (EntryCorrupt, RecordUntrusted) as error:
                problem = problem or error
                continue
            if record is not None:
                return name, record
        if problem is not None:
            raise problem
        return key, None

    def _read(self, name: str, key: str, wanted: Recipe | None) -> Record | None:
        data = self.records.get(name)
        if data is None:
            return None
        why_not = self.trust.refusal(key, _output_of(data), self.signatures.get(name, ()))
        if why_not is not None:
            raise RecordUntrusted(f"the record {key} in memory does not count: {why_not}")
        try:
            record = Record.from_bytes(data, wanted)
            if record.recipe.key != key:
                raise ValueError("it is the record of another key")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.quarantine["ac", name] = self.records.pop(name)
            raise EntryCorrupt(f"the record {key} is corrupt: {error}") from error
        return record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """The keys that have an entry. The entries are not read."""
        return {key for key in keys if any(name in self.records for name in lookup_keys(self.trust, key))}

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record whose blobs are in the store (core/recipes/ports.py). Raises BlobMissing."""
        key = record.recipe.key
        with self._lock:
            winner = None if replace else self._usable(key, record)
            if winner is not None:
                return winner
            for name, output in record.outputs.items():
                if not self.has(output.sha256):
                    raise BlobMissing(f"output {name!r} of record {key}: blob {output.sha256} is not in this store")
            document = record.to_bytes()
            signatures = self.trust.sign(key, _output_of(document))
            place = self._free_place(key, signatures)
            if place is not None:
                self.records[place], self.signatures[place] = document, signatures
        return record

    def _free_place(self, key: str, signatures: tuple[Signature, ...]) -> str | None:
        """The key in `records` for a new record. None if `key` has an untrusted record, and this store does not sign."""
        try:
            self._read(key, key, None)
        except RecordUntrusted:
            return domain_key(signatures[0].domain, key) if signatures else None
        except EntryCorrupt:
            pass
        return key

    def _usable(self, key: str, wanted: Record) -> Record | None:
        """The stored record if it is trusted, has the recipe of `wanted`, and all its blobs exist; otherwise None."""
        try:
            name, found = self._first_trusted(key, None)
        except (EntryCorrupt, RecordUntrusted):
            return None
        if found is None:
            return None
        if not found.recipe.same_as(wanted.recipe):
            self.quarantine["ac", name] = self.records.pop(name)
            return None
        return found if all(self.has(output.sha256) for output in found.outputs.values()) else None

    def session(self) -> AbstractContextManager[None]:
        """A session without effect, because there is no garbage collection."""
        return nullcontext()

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """A lock that one thread at a time holds while it produces the record under `key`."""
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        with lock:
            yield


def _output_of(document: bytes) -> Output:
    return Output(hashlib.sha256(document).hexdigest(), len(document))
