"""Fetches blobs from remotes whose records name them. The rules are in layered.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trtbuild.core.recipes.record import Output
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    RecordUntrusted,
    RemoteFault,
    RemoteLied,
    StoreError,
    StoreUnavailable,
)
from trtbuild.store.layers.fetching import NameLocks
from trtbuild.store.layers.remote_records import FoundRecords
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

#: Blobs of at most this many bytes are fetched together with another blob of their record (rule 2).
SMALL_BLOB_SIZE = 256 << 10

T = TypeVar("T")


class RemoteBlobs:
    """The blobs of the records in `found_records`. Several threads may call its methods."""

    def __init__(self, local: LocalStore, found_records: FoundRecords) -> None:
        self._local = local
        self._found_records = found_records
        self._name_locks = NameLocks()

    def try_fetch(self, sha256: str) -> bool:
        """Fetch a blob into the local store. Returns False if the local store cannot be written. Raises BlobMissing."""
        try:
            self.fetch(sha256)
        except StoreUnavailable:
            return False
        return True

    def fetch(self, sha256: str) -> None:
        """Fetch a blob into the local store, unless it is there. Raises BlobMissing, StoreUnavailable."""
        with self._name_locks.hold([sha256]):
            if self._local.has(sha256):
                return  # another thread was faster
            self.fetch_with(sha256, lambda remote, files: remote.fetch(sha256, files, self._local))
        for key in self._found_records.keys_naming(sha256):
            self._complete_record(key)

    def fetch_with(self, sha256: str, fetch: Callable[[RemoteStore, tuple[Output, ...]], T]) -> T:
        """The result of `fetch` for the first remote from which the blob can be fetched. Raises BlobMissing."""
        for remote, files in self._found_records.remotes_with_blob(sha256):
            try:
                return fetch(remote, files)
            except (BlobMissing, RemoteFault) as error:
                # After other faults, for example if the remote is down, it may still have the blob.
                is_gone = isinstance(error, BlobMissing | RemoteLied)
                self._found_records.note_missing_blob(remote, sha256, is_gone=is_gone)
        raise BlobMissing(f"blob {sha256} is neither here nor in a remote")

    def _complete_record(self, key: str) -> None:
        """Fetch a record's small blobs, and write the record if no blob is missing then (rule 2)."""
        place = self._found_records.first_hit(key)
        if place is None:
            return
        remote, found = place
        try:
            for output in found.record.outputs.values():
                if not self._local.has(output.sha256):
                    if output.size > SMALL_BLOB_SIZE:
                        return
                    remote.fetch(output.sha256, found.files_by_blob[output.sha256], self._local)
            self._local.put_record_copy(
                found.record, found.document, found.signatures, replace=self._refuses_local_record(key)
            )
        except StoreError:
            return  # the record stays in the remote

    def _refuses_local_record(self, key: str) -> bool:
        """Whether there is a trusted local record that the lock file refuses."""
        if key not in self._local.has_records([key]):
            return False
        try:
            local_record = self._local.get_record(key)
        except (EntryCorrupt, RecordUntrusted):
            return False
        return local_record is not None and self._found_records.lock_refusal(key, local_record, False) is not None
