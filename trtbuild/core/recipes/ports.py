"""The interfaces of a store, for the driver. The implementations are in `trtbuild.store`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record


@dataclass(frozen=True)
class FileStamp:
    """The inode, the size in bytes and the mtime of a file that was just written.

    Any later edit of the file changes the stamp: no edit leaves this mtime (`store.local.publication`)."""

    inode: int
    size: int
    mtime_ns: int


class BlobStore(Protocol):
    """Bytes named by their SHA-256. Safe for several processes at once."""

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Store `data`, atomically. The blob is durable when the call returns. Raises StoreUnavailable."""

    def put_file(self, path: str) -> Output:
        """Store a file's bytes, which are read in pieces. Raises StoreUnavailable, or OSError if `path` cannot be read."""

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes of a blob, whose SHA-256 was checked. Raises BlobMissing or EntryCorrupt."""

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Raises BlobMissing or EntryCorrupt.

        Returns the file's stamp, or None if the file system does not support stamps."""

    def has(self, sha256: str) -> bool:
        """Whether the blob exists, with all its chunks. The bytes are not read."""


class RecordStore(Protocol):
    """Records by key."""

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record under `key`, or None. Reading is faster if the record's recipe is `wanted`.

        Raises EntryCorrupt for a corrupt record, which is moved to the quarantine. Raises RecordUntrusted for a record that
        this machine does not trust (`core.recipes.trust`), or that the lock file does not accept."""

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """The keys in `keys` that have an entry. The entries are not read, but count as used for garbage collection."""

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, whose blobs must be in the store. Records are write-once.

        Returns the record that is in the store afterwards. It may be a record that another process published first. With
        `replace`, `record` replaces an existing record. If `record` must not replace an untrusted record, it is returned
        without being stored. Raises BlobMissing if an output is not in the store."""


class Store(BlobStore, RecordStore, Protocol):
    """A store of blobs and records."""

    def session(self) -> AbstractContextManager[None]:
        """A context manager. Until its block ends, garbage collection keeps all entries that were read or written in it."""

    def building(self, key: str) -> AbstractContextManager[None]:
        """A context manager that holds a lock on `key`, so that simultaneous builds do not run a step with this key twice.

        The lock also ends if the process dies."""
