"""The local store with remotes behind it: first hit wins, and what is needed comes along.

Rules
1. The local store is asked first; then each remote that may be read, in order. A record that is found in one of them is as
   good as a local one at once; its blobs are brought when something needs them, and nothing else is moved.
2. What is brought goes into the local store, verified. When all blobs of a record are there, the record is too. Small
   blobs of a record come along with the first of them: one that is complete needs no remote any more.
3. A remote is never the end of a build. What it does wrong is a miss, and is counted (`reports`); a blob that it named and
   does not have is gone (`BlobMissing`), so the next plan makes it anew, in the same run.
4. What is put is local, and on its way to the remotes that may be written (`uploads`).
5. An engine that somebody else has published while it was built here is used instead of ours: so one key has one engine.
   Packages are sent last, and only if the engines over there are those that they were put together from.
6. Who only asks (`only_asks`) changes nothing here either: what it needs to read is kept in memory.
7. Where the local store cannot be written, what is brought goes straight to where it is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from trtbuild.core.recipes.keys import POINTERS
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
from trtbuild.store.layers.remote_records import Afar, Refuses
from trtbuild.store.layers.uploads import Uploads
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import Found, RemoteStore

#: Blobs of at most this many bytes come along with others of their record (rule 2).
SMALL = 256 << 10

T = TypeVar("T")


class LayeredStore:
    """The `Store` of core/recipes/ports.py over a local one and remotes: `readers` in the order in which they are asked,
    and
    `writers`."""

    def __init__(
        self, local: LocalStore, readers: Sequence[RemoteStore] = (), writers: Sequence[RemoteStore] = ()
    ) -> None:
        self.local = local
        self._afar = Afar(tuple(readers))
        self.uploads = Uploads(local, tuple(writers), self._lost_race)
        self._asking = False
        self._sending = True
        self._lock = threading.Lock()
        self._bringing: dict[str, threading.Lock] = {}
        self._in_memory: dict[str, bytes] = {}
        #: Packages that are sent last, and the keys of their engines.
        self._packages: dict[str, frozenset[object]] = {}

    @property
    def readers(self) -> tuple[RemoteStore, ...]:
        """The remotes that are asked, in order."""
        return self._afar.readers

    @property
    def writers(self) -> tuple[RemoteStore, ...]:
        """The remotes that what is put is sent to."""
        return self.uploads.remotes

    @property
    def refuses(self) -> Refuses:
        """What a lock file has against records."""
        return self._afar.refuses

    @refuses.setter
    def refuses(self, refuses: Refuses) -> None:
        self._afar.refuses = refuses

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
                return self._noted(key, own)
            trouble = RecordUntrusted(why)
        try:
            found = self._afar.find(key, wanted) if self.readers else None
        except RecordUntrusted as error:
            found, trouble = None, error
        if found is not None:
            return found.record
        if own is not None and self.refuses(key, own, True) is None:
            return self._noted(key, own)
        if trouble is not None:
            raise trouble
        return None

    def _noted(self, key: str, record: Record) -> Record:
        if self.readers:
            self._afar.note(key, record)
        return record

    def expect(self, keys: Iterable[str]) -> None:
        """A hint: these records will be asked for. Remotes are asked for all of them at once."""
        if self.readers:
            self._afar.expect(keys, self.local.has_records)

    def source_of(self, key: str) -> str:
        """Where the record of a key came from: ``local``, or a remote's name."""
        place = self._afar.found(key)
        return "local" if place is None else place[0].name

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is a local entry. Raises StoreUnavailable."""
        return self.local.has_records(keys)

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, as core/recipes/ports.py says; the winner may be a remote's. Raises BlobMissing,
        StoreUnavailable."""
        key = record.recipe.key
        if self.readers and not replace and record.recipe.stage == "engine":
            with suppress(RecordUntrusted):
                found = self._afar.find(key)
                # Not one that has gaps: that may be why this was built.
                if found is not None and found.record.recipe.same_as(record.recipe) and not self._afar.has_gaps(key):
                    return found.record
        record = self._noted(key, self.local.put_record(record, replace=replace))
        self._afar.forget(key)
        if not self._sending:
            return record
        if record.recipe.stage == "package":
            engines = dict(record.recipe.parts).get("engines")
            self._packages[key] = frozenset(engines.values()) if isinstance(engines, Mapping) else frozenset()
        else:
            self.uploads.add(key, last=record.recipe.stage in POINTERS)
        return record

    def _lost_race(self, remote: RemoteStore, found: Found) -> None:
        """Another machine's record was first: from the next command on, it is ours, if that remote is one to read from."""
        self._afar.count(remote, "lost_races")
        if found.record.recipe.stage == "package":
            return  # the one that is here was put together from the engines that are here
        if remote not in self.readers or self.refuses(found.record.recipe.key, found.record, False) is not None:
            return
        with suppress(StoreError):  # then this machine goes on with its own
            for sha256, parts in found.parts.items():
                if not self.local.has(sha256):
                    remote.fetch(sha256, parts, self.local)
            self.local.put_found(found.record, found.document, found.signatures, replace=True)

    # -- blobs

    def put_bytes(self, data: bytes | memoryview) -> Output:
        """Keep `data` here. Raises StoreUnavailable."""
        self._asking = False
        return self.local.put_bytes(data)

    def put_file(self, path: str) -> Output:
        """Keep a file's bytes here. Raises StoreUnavailable, or OSError when `path` cannot be read."""
        self._asking = False
        return self.local.put_file(path)

    def has(self, sha256: str) -> bool:
        """Whether the blob is here, or a remote says that it has it. Raises StoreUnavailable."""
        return self.local.has(sha256) or any(True for _ in self._afar.places(sha256))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        if sha256 in self._in_memory:
            return self._in_memory[sha256]
        try:
            return self.local.get_bytes(sha256)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
        if not self._asking and self._brought(sha256):
            return self.local.get_bytes(sha256)
        data = self._from(sha256, lambda remote, parts: remote.fetch_bytes(sha256, parts))
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
        if self._brought(sha256):
            return self.local.copy_to(sha256, path)
        return self._from(sha256, lambda remote, parts: remote.copy_parts(sha256, parts, path))

    def bring(self, blobs: Iterable[str]) -> None:
        """Have blobs in the local store, where other processes look for them. Raises BlobMissing, StoreUnavailable."""
        for sha256 in blobs:
            if self.readers and not self.local.has(sha256):
                self._bring(sha256)

    def _brought(self, sha256: str) -> bool:
        """Whether a blob is here now. False: this place cannot be written. Raises BlobMissing."""
        try:
            self._bring(sha256)
        except StoreUnavailable:
            return False
        return True

    def _bring(self, sha256: str) -> None:
        with self._lock:
            lock = self._bringing.setdefault(sha256, threading.Lock())
        with lock:
            if self.local.has(sha256):
                return  # another thread was faster
            self._from(sha256, lambda remote, parts: remote.fetch(sha256, parts, self.local))
        for key in self._afar.keys_of(sha256):
            self._bring_along(key)

    def _from(self, sha256: str, fetch: Callable[[RemoteStore, tuple[Output, ...]], T]) -> T:
        """What `fetch` gives at the first place that has the blob. Raises BlobMissing."""
        for remote, parts in self._afar.places(sha256):
            try:
                return fetch(remote, parts)
            except (BlobMissing, RemoteFault):
                self._afar.gone(remote, sha256)
        raise BlobMissing(f"blob {sha256} is neither here nor in a remote")

    def _bring_along(self, key: str) -> None:
        """Complete a record whose other blobs are small, and keep it when it is complete (rule 2)."""
        place = self._afar.found(key)
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
            return  # it stays where it is

    def _is_refused_here(self, key: str) -> bool:
        """Whether the local record of a key is there and counts, and is not used all the same."""
        if key not in self.local.has_records([key]):
            return False
        try:
            own = self.local.get_record(key)
        except (EntryCorrupt, RecordUntrusted):
            return False
        return own is not None and self.refuses(key, own, False) is not None

    # -- the rest

    def only_asks(self) -> None:
        """For a command that only says what is there (rule 6), until something is put."""
        self._asking = True
        self.local.only_asks()

    @contextmanager
    def only_reading(self, readers: Sequence[RemoteStore] | None = None) -> Iterator[None]:
        """What is put meanwhile is not sent. Only `readers` are asked, if given."""
        before = self._afar, self._sending
        self._sending = False
        if readers is not None:
            self._afar = Afar(tuple(readers))
            self._afar.refuses = before[0].refuses
        try:
            yield
        finally:
            self._afar, self._sending = before

    def session(self) -> AbstractContextManager[None]:
        """What is read or written from here to the end of the session is safe from collection. Raises StoreUnavailable."""
        return self.local.session()

    def building(self, key: str) -> AbstractContextManager[None]:
        """Held while a key is being built on this machine. Raises StoreUnavailable."""
        return self.local.building(key)

    def finish(self) -> None:
        """Come back when all that was put is where it can be."""
        self.uploads.finish()
        packages, self._packages = self._packages, {}
        for key, engines in packages.items():
            if not engines & self.uploads.lost:  # else it would not fit; the next build puts one together that does
                self.uploads.add(key)
        self.uploads.finish()

    @property
    def unsent(self) -> int:
        """Records that are not yet where they are sent."""
        return self.uploads.waiting + len(self._packages) * bool(self.writers)

    def close(self) -> None:
        """Let go of connections and threads. What was not sent yet is not."""
        self.uploads.close()
        for remote in {id(each): each for each in (*self.readers, *self.writers)}.values():
            remote.close()

    def warnings(self) -> list[str]:
        """What a person should know of the remotes and of the keys, once each."""
        return accounts.warnings(self.reports(), self.local.trust, self.writers)

    def reports(self) -> list[accounts.Account]:
        """What each remote was used for, and what it did wrong; as ``--json`` shows it."""
        remotes = {each.name: each for each in (*self.readers, *self.writers)}.values()
        return [accounts.account(remote, self._afar.counts(remote), self.uploads) for remote in remotes]
