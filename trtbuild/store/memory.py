"""A store in memory: for tests, and for what must leave nothing behind. It has the contract of core/ports.py.

It keeps blobs whole and records as their documents, and verifies what it reads as the others do, so that a test can
damage it (`blobs`, `records`). Nothing is ever collected, so a session has nothing to do.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from trtbuild.core.ports import FileStamp
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Output, Record
from trtbuild.errors import BlobMissing, EntryCorrupt
from trtbuild.store.publication import copy_atomically


class MemoryStore:
    """The `Store` of core/ports.py, of this process alone."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.records: dict[str, bytes] = {}
        #: What was wrong: ("cas" or "ac", name) and the bytes that were there.
        self.quarantine: dict[tuple[str, str], bytes] = {}
        self._lock = threading.RLock()
        self._building: dict[str, threading.Lock] = {}

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Keep `data`."""
        kept = bytes(data)
        output = Output(hashlib.sha256(kept).hexdigest(), len(kept))
        with self._lock:
            if len(self.blobs.get(output.sha256, b"")) != output.size or output.sha256 not in self.blobs:
                self.blobs[output.sha256] = kept
        return output

    def put_file(self, path: str) -> Output:
        """Keep a file's bytes. Raises OSError when `path` cannot be read."""
        return self.put_bytes(Path(path).read_bytes())

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing or EntryCorrupt."""
        with self._lock:
            data = self.blobs.get(sha256)
            if data is None:
                raise BlobMissing(f"blob {sha256} is not in this store")
            if hashlib.sha256(data).hexdigest() != sha256:
                self.quarantine["cas", sha256] = self.blobs.pop(sha256)
                raise EntryCorrupt(f"blob {sha256} is not what its name says")
            return data

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Raises BlobMissing, EntryCorrupt, or OSError."""
        return copy_atomically([memoryview(self.get_bytes(sha256))], path)

    def has(self, sha256: str) -> bool:
        """Whether the blob is there; its bytes are not read."""
        return sha256 in self.blobs

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None; the sooner read if it is of the `wanted` recipe. A corrupt one is moved to quarantine and
        raises EntryCorrupt."""
        with self._lock:
            data = self.records.get(key)
            if data is None:
                return None
            try:
                record = Record.from_bytes(data, wanted)
                if record.recipe.key != key:
                    raise ValueError("it is the record of another key")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                self.quarantine["ac", key] = self.records.pop(key)
                raise EntryCorrupt(f"the record {key} is corrupt: {error}") from error
            return record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is an entry. It is not read."""
        return self.records.keys() & set(keys)

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, after its blobs, as core/ports.py says. Raises BlobMissing."""
        key = record.recipe.key
        with self._lock:
            winner = None if replace else self._usable(key, record)
            if winner is not None:
                return winner
            for name, output in record.outputs.items():
                if not self.has(output.sha256):
                    raise BlobMissing(f"output {name!r} of record {key}: blob {output.sha256} is not in this store")
            self.records[key] = record.to_bytes()
        return record

    def _usable(self, key: str, wanted: Record) -> Record | None:
        try:
            found = self.get_record(key)
        except EntryCorrupt:
            return None
        if found is None:
            return None
        if not found.recipe.same_as(wanted.recipe):
            self.quarantine["ac", key] = self.records.pop(key)
            return None
        return found if all(self.has(output.sha256) for output in found.outputs.values()) else None

    def session(self) -> AbstractContextManager[None]:
        """Nothing is collected from here."""
        return nullcontext()

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Held while a key is being built, by one thread at a time."""
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        with lock:
            yield
