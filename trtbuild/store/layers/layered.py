"""The local store with remotes behind it: the first hit wins, and blobs are fetched when they are needed.

Rules
1. A lookup reads the local store first, then each readable remote, in order. A record in a remote is a hit. Its blobs stay
   in the remote until one of them is read (rule 2).
2. Blobs are fetched into the local store, and verified. After a blob of a record was fetched, the record's small blobs are
   fetched, too, up to the first large blob that is missing. When the local store has all blobs of a record, the record is
   written there. From then on no remote is needed for the record.
3. A fault of a remote never makes a build fail. It is handled like a miss, and `reports` contains it. If no store has a
   blob that a remote's record names, BlobMissing is raised. Then the next plan in the same run builds the blob again.
4. New records and blobs are written to the local store, and are sent to the remotes that may be written (uploads.py).
5. All machines use the same engine for one key. So if another machine published an engine while this machine built it, the
   other machine's engine is used. Packages are sent last, and only if no remote has kept another machine's engine
   in place of one in the package.
6. In a command that only reads (`begin_read_only`), lookups and `get_bytes` change nothing in the local store, except that
   a damaged entry is moved to quarantine. `get_bytes` keeps fetched blobs in memory.
7. If the local store cannot be written, `copy_to` writes a remote's blob directly to its path, and `get_bytes` keeps it in
   memory.
8. Pointers are sent at the end, too. A pointer replaces a pointer in a remote only if the build has not failed. A failed
   build's pointer would lead a machine without torch to a trace without engines, and away from one with engines.
9. A record whose results cannot be read (`refuse_record`) is replaced in the remotes, too, by the record of the step that
   runs again. Otherwise the record of the remote would win by rule 5, and every build would run the step again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from trtbuild.core.recipes.lookup_recipes import POINTER_STAGES
from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    RecordUntrusted,
    StoreError,
)
from trtbuild.store.layers import remote_statistics
from trtbuild.store.layers.remote_blobs import RemoteBlobs
from trtbuild.store.layers.remote_records import FoundRecords, RefusalRule
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import Found, RemoteStore


class LayeredStore:
    """A `Store` (core/recipes/ports.py) over a local store and remotes: `readers` are read, in this order, and `writers`
    are written."""

    def __init__(
        self, local: LocalStore, readers: Sequence[RemoteStore] = (), writers: Sequence[RemoteStore] = ()
    ) -> None:
        self.local = local
        self._found_records = FoundRecords(tuple(readers))
        self._remote_blobs = RemoteBlobs(local, self._found_records)
        self.uploads = Uploads(local, tuple(writers), self._fetch_winner)
        self._is_read_only = False
        self._sends_records = True
        self._blobs_in_memory: dict[str, bytes] = {}
        #: The keys of the pointers that are sent at the end.
        self._pointers: dict[str, None] = {}
        #: Key of a package that is sent at the end → the keys of its engines.
        self._packages: dict[str, frozenset[object]] = {}

    @property
    def readers(self) -> tuple[RemoteStore, ...]:
        """The remotes that are read, in order."""
        return self._found_records.readers

    @property
    def writers(self) -> tuple[RemoteStore, ...]:
        """The remotes that new records are sent to."""
        return self.uploads.remotes

    @property
    def lock_refusal(self) -> RefusalRule:
        """The rule by which the lock file (`trtbuild.lock`) refuses records."""
        return self._found_records.lock_refusal

    @lock_refusal.setter
    def lock_refusal(self, lock_refusal: RefusalRule) -> None:
        self._found_records.lock_refusal = lock_refusal

    # -- records

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None. A record with the `wanted` recipe is parsed faster. Raises EntryCorrupt, RecordUntrusted,
        StoreUnavailable."""
        local_record: Record | None = None
        problem: StoreError | None = None
        try:
            local_record = self.local.get_record(key, wanted)
        except (EntryCorrupt, RecordUntrusted) as error:
            problem = error
        if local_record is not None:
            why = self.lock_refusal(key, local_record, False)
            if why is None:
                self._note_blobs(key, local_record)
                return local_record
            problem = RecordUntrusted(why)
        try:
            found = self._found_records.find(key, wanted) if self.readers else None
        except RecordUntrusted as error:
            found, problem = None, error
        if found is not None:
            return found.record
        if local_record is not None and self.lock_refusal(key, local_record, True) is None:
            self._note_blobs(key, local_record)  # no remote has a record that the lock file accepts
            return local_record
        if problem is not None:
            raise problem
        return None

    def _note_blobs(self, key: str, record: Record) -> None:
        if self.readers:
            self._found_records.note_record(key, record)

    def prefetch_records(self, keys: Iterable[str]) -> None:
        """Look up records that will be requested soon. The requests to one remote are sent in parallel."""
        if self.readers:
            self._found_records.prefetch_records(keys, self.local.has_records)

    def source_of(self, key: str) -> str:
        """The name of the store that a record came from: ``local``, or a remote's name."""
        place = self._found_records.first_hit(key)
        return "local" if place is None else place[0].name

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Return the `keys` that have a local entry. Raises StoreUnavailable."""
        return self.local.has_records(keys)

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record. Its blobs must be in the local store. Returns the record that is used from now on, which may be
        a remote's. Raises BlobMissing, StoreUnavailable."""
        key = record.recipe.key
        if self.readers and not replace and record.recipe.stage == "engine":
            # If a blob of the remote's record cannot be fetched, the engine that was just built is used.
            with suppress(RecordUntrusted, BlobMissing):
                found = self._found_records.find(key)
                # A remote's record that lacks a blob is not used. The missing blob may be the reason for this build.
                if (
                    found is not None
                    and found.record.recipe.same_as(record.recipe)
                    and not self._found_records.lacks_blob(key)
                ):
                    for output in found.record.outputs.values():
                        self._remote_blobs.try_fetch(output.sha256)
                    return found.record
        return self._send_new_record(self.local.put_record(record, replace=replace))

    def put_record_copy(
        self, record: Record, document: bytes, signatures: Sequence[Signature], *, replace: bool = False
    ) -> Record:
        """Publish a record that another machine made and signed. Its blobs must be in the local store. Returns the
        record that is used from now on. Raises RecordUntrusted, BlobMissing, StoreUnavailable."""
        return self._send_new_record(self.local.put_record_copy(record, document, signatures, replace=replace))

    def refuse_record(self, key: str) -> None:
        """Note that the results of the record under a key cannot be read, so that its step runs again (rule 9)."""
        documents = self._found_records.documents(key)
        with suppress(StoreError):
            entry_and_document = self.local.entry(key)
            if entry_and_document is not None:
                documents.append(entry_and_document[1])
        self.uploads.refused_documents.update(hashlib.sha256(document).hexdigest() for document in documents)

    def _send_new_record(self, record: Record) -> Record:
        """Send a new local record, or note a package or a pointer for the end (rules 4, 5 and 8). Returns the record."""
        key = record.recipe.key
        self._note_blobs(key, record)
        self._found_records.forget_record(key)
        if not self._sends_records:
            return record
        if record.recipe.stage == "package":
            engines = dict(record.recipe.parts).get("engines")
            self._packages[key] = frozenset(engines.values()) if isinstance(engines, Mapping) else frozenset()
        elif record.recipe.stage in POINTER_STAGES:
            self._pointers[key] = None
        else:
            self.uploads.add(key)
        return record

    def _fetch_winner(self, remote: RemoteStore, found: Found) -> None:
        """Fetch the record that another machine published first, if `remote` may be read. The next command uses it."""
        self._found_records.count_event(remote, "lost_races")
        if found.record.recipe.stage in ("package", *POINTER_STAGES):
            return  # the local package contains the local engines, and the local pointer leads to a local record
        if remote not in self.readers or self.lock_refusal(found.record.recipe.key, found.record, False) is not None:
            return
        with suppress(StoreError):  # then this machine keeps its own record
            for sha256, files in found.files_by_blob.items():
                if not self.local.has(sha256):
                    remote.fetch(sha256, files, self.local)
            self.local.put_record_copy(found.record, found.document, found.signatures, replace=True)

    # -- blobs

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Write `data` to the local store. Raises StoreUnavailable."""
        self._is_read_only = False
        return self.local.put_bytes(data)

    def put_file(self, path: str) -> Output:
        """Write a file's bytes to the local store. Raises StoreUnavailable, or OSError when `path` cannot be read."""
        self._is_read_only = False
        return self.local.put_file(path)

    def has(self, sha256: str) -> bool:
        """Whether the blob is in the local store, or a record of a remote names it. Raises StoreUnavailable."""
        return self.local.has(sha256) or any(True for _ in self._found_records.remotes_with_blob(sha256))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        if sha256 in self._blobs_in_memory:
            return self._blobs_in_memory[sha256]
        try:
            return self.local.get_bytes(sha256)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
        if not self._is_read_only and self._remote_blobs.try_fetch(sha256):
            return self.local.get_bytes(sha256)
        data = self._remote_blobs.fetch_with(sha256, lambda remote, files: remote.fetch_bytes(sha256, files))
        self._blobs_in_memory[sha256] = data
        return data

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp, if there is one.

        Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError when `path` cannot be written.
        """
        try:
            return self.local.copy_to(sha256, path)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
        if self._remote_blobs.try_fetch(sha256):
            return self.local.copy_to(sha256, path)
        return self._remote_blobs.fetch_with(sha256, lambda remote, files: remote.copy_files(sha256, files, path))

    def fetch(self, blobs: Iterable[str]) -> None:
        """Fetch blobs into the local store, for other processes. Raises BlobMissing, StoreUnavailable."""
        for sha256 in blobs:
            if self.readers and not self.local.has(sha256):
                self._remote_blobs.fetch(sha256)

    # -- sessions, uploads, reports

    def begin_read_only(self) -> None:
        """Change nothing (rule 6), until the first call that writes. `get_bytes` fetches blobs into memory only, until the
        first `put_bytes` or `put_file`."""
        self._is_read_only = True
        self.local.begin_read_only()

    @contextmanager
    def without_uploads(self, readers: Sequence[RemoteStore] | None = None) -> Iterator[None]:
        """Send nothing within the block. With `readers`, read only these remotes."""
        found_records, remote_blobs, sends_records = self._found_records, self._remote_blobs, self._sends_records
        self._sends_records = False
        if readers is not None:
            self._found_records = FoundRecords(tuple(readers))
            self._found_records.lock_refusal = found_records.lock_refusal
            self._remote_blobs = RemoteBlobs(self.local, self._found_records)
        try:
            yield
        finally:
            self._found_records, self._remote_blobs, self._sends_records = found_records, remote_blobs, sends_records

    def session(self) -> AbstractContextManager[None]:
        """Protect all that is read or written within the block from collection. Raises StoreUnavailable."""
        return self.local.session()

    def building(self, key: str) -> AbstractContextManager[None]:
        """Lock a key while its record is built on this machine. Raises StoreUnavailable."""
        return self.local.building(key)

    def finish(self, *, keeps_pointers: bool = False) -> None:
        """Wait until each new record was sent, or could not be sent. With `keeps_pointers`, the pointers in the remotes are
        not replaced (rule 8)."""
        self.uploads.finish()
        pointers, self._pointers = self._pointers, {}
        for key in pointers:
            self.uploads.add(key, last=True, keeps_pointers=keeps_pointers)
        packages, self._packages = self._packages, {}
        for key, engines in packages.items():
            # If a remote has another engine, this package is not sent. The next build makes one with the remote's engine.
            if not engines & self.uploads.lost_keys:
                self.uploads.add(key)
        self.uploads.finish()

    @property
    def unsent_count(self) -> int:
        """The number of records that wait to be sent. A record counts once for each remote, a package or pointer once."""
        return self.uploads.unsent_count + (len(self._packages) + len(self._pointers) if self.writers else 0)

    def close(self) -> None:
        """Close connections and threads. Uploads that have not begun are cancelled."""
        self.uploads.close()
        for remote in {id(each): each for each in (*self.readers, *self.writers)}.values():
            remote.close()

    def warnings(self) -> list[str]:
        """The warnings about the remotes and the signing keys."""
        return remote_statistics.warning_texts(self.reports(), self.local.trust, self.writers)

    def reports(self) -> list[remote_statistics.RemoteStatistics]:
        """The requests and faults of each remote, as ``--json`` shows them."""
        remotes = {each.name: each for each in (*self.readers, *self.writers)}.values()
        return [
            remote_statistics.make_statistics(remote, self._found_records.counts_of(remote), self.uploads)
            for remote in remotes
        ]
