"""What the stages and the driver ask of a store. Adapters live in `trtbuild.store`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record


@dataclass(frozen=True)
class FileStamp:
    """What tells a file that was just written from any later edit of it: the inode, the size in bytes, and an mtime that
    no clock gives (`store.local.publication`)."""

    inode: int
    size: int
    mtime_ns: int


class BlobStore(Protocol):
    """Bytes named by their SHA-256. Safe for several processes at once."""

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Keep `data`; atomic and durable when it returns. Raises StoreUnavailable."""

    def put_file(self, path: str) -> Output:
        """Keep a file's bytes, streaming. Raises StoreUnavailable, or OSError when `path` cannot be read."""

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing or EntryCorrupt."""

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp, or None where the file system keeps
        none. Raises BlobMissing or EntryCorrupt."""

    def has(self, sha256: str) -> bool:
        """Whether all parts of the blob are there; their bytes are not read."""


class RecordStore(Protocol):
    """Records by key."""

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None; the sooner read if it is of the `wanted` recipe. A corrupt one is moved to quarantine and
        raises EntryCorrupt; one that is there and does not count (core/recipes/trust.py) raises RecordUntrusted."""

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is an entry. It counts as used then, and is not read."""

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, after its blobs. Write-once: the winner of a race is returned, which may be another's.
        With `replace`, this one wins. Raises BlobMissing when an output is not in the store."""


class Store(BlobStore, RecordStore, Protocol):
    """A whole store."""

    def session(self) -> AbstractContextManager[None]:
        """What is read or written from here to the end of the session is safe from collection."""

    def building(self, key: str) -> AbstractContextManager[None]:
        """Held while a key is being built, so that two builds at once build it once. Released when the process dies."""
