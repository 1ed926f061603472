"""What the stages and the driver ask of a store. Adapters live in `trtbuild.store`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from trtbuild.core.record import Output, Record


class BlobStore(Protocol):
    """Bytes named by their SHA-256. Safe for several processes at once."""

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Keep `data`; atomic and durable when it returns. Raises StoreUnavailable."""

    def put_file(self, path: str) -> Output:
        """Keep a file's bytes, streaming. Raises StoreUnavailable, or OSError when `path` cannot be read."""

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing or EntryCorrupt."""

    def copy_to(self, sha256: str, path: str) -> None:
        """Write the verified bytes to `path`, atomically. Raises BlobMissing or EntryCorrupt."""

    def has(self, sha256: str) -> bool:
        """Whether all parts of the blob are there; their bytes are not read."""


class RecordStore(Protocol):
    """Records by key."""

    def get_record(self, key: str) -> Record | None:
        """The record, or None. A corrupt one is moved to quarantine and raises EntryCorrupt."""

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, after its blobs. Write-once: the winner of a race is returned, which may be another's.
        With `replace`, this one wins. Raises BlobMissing when an output is not in the store."""


class Store(BlobStore, RecordStore, Protocol):
    """A whole store."""

    def session(self) -> AbstractContextManager[None]:
        """What is read or written from here to the end of the session is safe from collection."""

    def building(self, key: str) -> AbstractContextManager[None]:
        """Held while a key is being built, so that two builds at once build it once. Released when the process dies."""
