"""The local store with remotes behind it: the first hit wins, and blobs are fetched when they are needed.

Rules
1. A lookup reads the local store first, then each readable remote, in order. A record in a remote is a hit. Its blobs are
   fetched when something reads them, and only then.
2. Blobs are fetched into the local store, and verified. Together with the first blob of a record, the small blobs of the
   record are fetched. Once the local store has all blobs of a record, the record is written there. From then on no remote
   is needed for the record.
3. A fault of a remote never makes a build fail. Faults count as misses (`reports`). If a remote names a blob but does not
   have it, BlobMissing is raised, so the next plan in the same run builds the blob again.
4. New records and blobs are written to the local store, and are sent to the remotes that may be written (`uploads`).
5. If another machine has published an engine while it was built here, that engine is used: one key has one engine. Packages
   are sent last, and only if the remote has the same engines as the package.
6. A command that only reads (`only_read`) changes nothing in the local store: the blobs that it fetches are kept in memory.
7. If the local store cannot be written, blobs are written directly to their destination.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from trtbuild.core.recipes.keys import POINTER_STAGES
from trtbuild.core.recipes.ports import FileStamp
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    RecordUntrusted,
    RemoteFault,
    StoreError,
    StoreUnavailable,
)
from trtbuild.store.layers import accounts
from trtbuild.store.layers.remote_records import FoundRecords, Refuses
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import Found, RemoteStore

#: Blobs of at most this many bytes are fetched together with the first blob of their record (rule 2).
SMALL = 256 << 10

T = TypeVar("T")


class LayeredStore:
    """A `Store` (core/recipes/ports.py) over a local store and remotes. `readers` are the remotes to read from, in this
    order, and `writers` the remotes to write to."""

    def __init__(
        self, local: LocalStore, readers: Sequence[RemoteStore] = (), writers: Sequence[RemoteStore] = ()
    ) -> None:
        self.local = local
        self._found_records = FoundRecords(tuple(readers))
        self.uploads = Uploads(local, tuple(writers), self._lost_race)
        self._only_reads = False
        self._sending = True
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}
        self._in_memory: dict[str, bytes] = {}
        #: Packages that are sent last, and the keys of their engines.
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
    def refuses(self) -> Refuses:
        """The rule of the lock file: which records are not used."""
        return self._found_records.refuses

    @refuses.setter
    def refuses(self, refuses: Refuses) -> None:
        self._found_records.refuses = refuses

    # -- records

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None. Raises EntryCorrupt, RecordUntrusted, StoreUnavailable."""
        own: Record | None = None
        trouble: StoreError | None = None
        try:
            own = self.local.get_record(key, wanted)
        except (EntryCorrupt, RecordUntrusted) as error:
            trouble = error
        if own is not None:
            why = self.refuses(key, own, False)
            if why is None:
                return self._note_and_return(key, own)
            trouble = RecordUntrusted(why)
        try:
            found = self._found_records.find(key, wanted) if self.readers else None
        except RecordUntrusted as error:
            found, trouble = None, error
        if found is not None:
            return found.record
        if own is not None and self.refuses(key, own, True) is None:
            return self._note_and_return(key, own)
        if trouble is not None:
            raise trouble
        return None

    def _note_and_return(self, key: str, record: Record) -> Record:
        if self.readers:
            self._found_records.note(key, record)
        return record

    def expect(self, keys: Iterable[str]) -> None:
        """Look up records that will be requested soon. Each remote gets the requests for all of them at once."""
        if self.readers:
            self._found_records.expect(keys, self.local.has_records)

    def source_of(self, key: str) -> str:
        """The source of a record: ``local``, or a remote's name."""
        place = self._found_records.found(key)
        return "local" if place is None else place[0].name

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Return the `keys` that have a local entry. Raises StoreUnavailable."""
        return self.local.has_records(keys)

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record (see core/recipes/ports.py). Returns the record that is used from now on, which may be a
        remote's. Raises BlobMissing, StoreUnavailable."""
        key = record.recipe.key
        if self.readers and not replace and record.recipe.stage == "engine":
            with suppress(RecordUntrusted):
                found = self._found_records.find(key)
                # A remote's record with a missing blob is not used: this may be the reason for the new build.
                if (
                    found is not None
                    and found.record.recipe.same_as(record.recipe)
                    and not self._found_records.has_gaps(key)
                ):
                    return found.record
        record = self._note_and_return(key, self.local.put_record(record, replace=replace))
        self._found_records.forget(key)
        if not self._sending:
            return record
        if record.recipe.stage == "package":
            engines = dict(record.recipe.parts).get("engines")
            self._packages[key] = frozenset(engines.values()) if isinstance(engines, Mapping) else frozenset()
        else:
            self.uploads.add(key, last=record.recipe.stage in POINTER_STAGES)
        return record

    def _lost_race(self, remote: RemoteStore, found: Found) -> None:
        """Fetch the record that another machine published first, if its remote may be read. The next command uses it."""
        self._found_records.count(remote, "lost_races")
        if found.record.recipe.stage == "package":
            return  # the local package contains the local engines
        if remote not in self.readers or self.refuses(found.record.recipe.key, found.record, False) is not None:
            return
        with suppress(StoreError):  # then this machine keeps its own record
            for sha256, parts in found.parts.items():
                if not self.local.has(sha256):
                    remote.fetch(sha256, parts, self.local)
            self.local.put_found(found.record, found.document, found.signatures, replace=True)

    # -- blobs

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Write `data` to the local store. Raises StoreUnavailable."""
        self._only_reads = False
        return self.local.put_bytes(data)

    def put_file(self, path: str) -> Output:
        """Write a file's bytes to the local store. Raises StoreUnavailable, or OSError when `path` cannot be read."""
        self._only_reads = False
        return self.local.put_file(path)

    def has(self, sha256: str) -> bool:
        """Whether the blob is in the local store, or a record of a remote names it. Raises StoreUnavailable."""
        return self.local.has(sha256) or any(True for _ in self._found_records.places(sha256))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        if sha256 in self._in_memory:
            return self._in_memory[sha256]
        try:
            return self.local.get_bytes(sha256)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
        if not self._only_reads and self._try_fetch(sha256):
            return self.local.get_bytes(sha256)
        data = self._fetch_with(sha256, lambda remote, parts: remote.fetch_bytes(sha256, parts))
        self._in_memory[sha256] = data
        return data

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp.

        Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError when `path` cannot be written.
        """
        try:
            return self.local.copy_to(sha256, path)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
        if self._try_fetch(sha256):
            return self.local.copy_to(sha256, path)
        return self._fetch_with(sha256, lambda remote, parts: remote.copy_parts(sha256, parts, path))

    def fetch(self, blobs: Iterable[str]) -> None:
        """Fetch blobs into the local store, for other processes. Raises BlobMissing, StoreUnavailable."""
        for sha256 in blobs:
            if self.readers and not self.local.has(sha256):
                self._fetch_blob(sha256)

    def _try_fetch(self, sha256: str) -> bool:
        """Fetch a blob into the local store. Returns False if the local store cannot be written. Raises BlobMissing."""
        try:
            self._fetch_blob(sha256)
        except StoreUnavailable:
            return False
        return True

    def _fetch_blob(self, sha256: str) -> None:
        with self._lock:
            lock = self._fetching.setdefault(sha256, threading.Lock())
        with lock:
            if self.local.has(sha256):
                return  # another thread was faster
            self._fetch_with(sha256, lambda remote, parts: remote.fetch(sha256, parts, self.local))
        for key in self._found_records.keys_of(sha256):
            self._complete_record(key)

    def _fetch_with(self, sha256: str, fetch: Callable[[RemoteStore, tuple[Output, ...]], T]) -> T:
        """The result of `fetch` for the first remote that has the blob. Raises BlobMissing."""
        for remote, parts in self._found_records.places(sha256):
            try:
                return fetch(remote, parts)
            except (BlobMissing, RemoteFault):
                self._found_records.gone(remote, sha256)
        raise BlobMissing(f"blob {sha256} is neither here nor in a remote")

    def _complete_record(self, key: str) -> None:
        """Fetch the small blobs of a record. If the record is complete then, write it (rule 2)."""
        place = self._found_records.found(key)
        if place is None:
            return
        remote, found = place
        try:
            for output in found.record.outputs.values():
                if not self.local.has(output.sha256):
                    if output.size > SMALL:
                        return
                    remote.fetch(output.sha256, found.parts[output.sha256], self.local)
            self.local.put_found(found.record, found.document, found.signatures, replace=self._is_refused_here(key))
        except StoreError:
            return  # the record stays in the remote

    def _is_refused_here(self, key: str) -> bool:
        """Whether there is a trusted local record that a lock file refuses."""
        if key not in self.local.has_records([key]):
            return False
        try:
            own = self.local.get_record(key)
        except (EntryCorrupt, RecordUntrusted):
            return False
        return own is not None and self.refuses(key, own, False) is not None

    # -- sessions, uploads, reports

    def only_read(self) -> None:
        """Change nothing (rule 6), until the first call that writes."""
        self._only_reads = True
        self.local.only_read()

    @contextmanager
    def only_reading(self, readers: Sequence[RemoteStore] | None = None) -> Iterator[None]:
        """Send nothing within the block. If `readers` is not None, read only these remotes."""
        before = self._found_records, self._sending
        self._sending = False
        if readers is not None:
            self._found_records = FoundRecords(tuple(readers))
            self._found_records.refuses = before[0].refuses
        try:
            yield
        finally:
            self._found_records, self._sending = before

    def session(self) -> AbstractContextManager[None]:
        """Protect all that is read or written within the block from collection. Raises StoreUnavailable."""
        return self.local.session()

    def building(self, key: str) -> AbstractContextManager[None]:
        """Hold a key while it is built on this machine. Raises StoreUnavailable."""
        return self.local.building(key)

    def finish(self) -> None:
        """Wait until all new records are sent, or have failed."""
        self.uploads.finish()
        packages, self._packages = self._packages, {}
        for key, engines in packages.items():
            if not engines & self.uploads.lost:  # otherwise the next build writes a package with the remote's engines
                self.uploads.add(key)
        self.uploads.finish()

    @property
    def unsent(self) -> int:
        """The number of records that are not sent yet."""
        return self.uploads.waiting + len(self._packages) * bool(self.writers)

    def close(self) -> None:
        """Close connections and threads. Records that were not sent yet are not sent."""
        self.uploads.close()
        for remote in {id(each): each for each in (*self.readers, *self.writers)}.values():
            remote.close()

    def warnings(self) -> list[str]:
        """The warnings about the remotes and the keys, each once."""
        return accounts.warnings(self.reports(), self.local.trust, self.writers)

    def reports(self) -> list[accounts.Account]:
        """The requests and faults of each remote, as ``--json`` shows them."""
        remotes = {each.name: each for each in (*self.readers, *self.writers)}.values()
        return [accounts.account(remote, self._found_records.counts(remote), self.uploads) for remote in remotes]
