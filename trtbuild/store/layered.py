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
6. Who only asks (`only_asks`) changes nothing here either: what it needs to read is kept in memory.
7. Where the local store cannot be written, what is brought goes straight to where it is wanted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from trtbuild.core.ports import FileStamp
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Output, Record
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    RecordUntrusted,
    RemoteFault,
    StoreError,
    StoreUnavailable,
)
from trtbuild.store.local import LocalStore
from trtbuild.store.remote.store import Found, RemoteStore
from trtbuild.store.remote.uploads import Uploads

#: Blobs of at most this many bytes come along with others of their record (rule 2).
SMALL = 256 << 10

_Place = tuple[RemoteStore, tuple[Output, ...]]


class LayeredStore:
    """The `Store` of core/ports.py over a local one and remotes: `readers` in the order in which they are asked, and
    `writers`."""

    def __init__(
        self, local: LocalStore, readers: Sequence[RemoteStore] = (), writers: Sequence[RemoteStore] = ()
    ) -> None:
        self.local = local
        self.readers = tuple(readers)
        self.writers = tuple(writers)
        self.uploads = Uploads(local, self.writers, self._lost_race)
        self._asking = False
        self._lock = threading.RLock()
        #: Records that remotes have, by key.
        self._found: dict[str, tuple[RemoteStore, Found]] = {}
        #: Keys that were looked for ahead, and are in no remote.
        self._absent: set[str] = set()
        #: Blob → keys of records that name it; and the places that turned out not to have it.
        self._named: dict[str, set[str]] = {}
        self._gone: set[tuple[str, str]] = set()
        self._bringing: dict[str, threading.Lock] = {}
        self._in_memory: dict[str, bytes] = {}
        self._counts: dict[str, Counter[str]] = {remote.name: Counter() for remote in (*self.readers, *self.writers)}

    # -- records

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None. Raises EntryCorrupt, RecordUntrusted, StoreUnavailable."""
        trouble: StoreError | None = None
        try:
            record = self.local.get_record(key, wanted)
        except (EntryCorrupt, RecordUntrusted) as error:
            record, trouble = None, error
        if record is not None:
            if self.readers:
                self._note(key, record)
            return record
        if self.readers:
            try:
                found = self._find(key, wanted)
            except RecordUntrusted as error:
                found, trouble = None, error
            if found is not None:
                return found.record
        if trouble is not None:
            raise trouble
        return None

    def _find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The first remote's record. Raises RecordUntrusted when there are only such as do not count."""
        with self._lock:
            if key in self._found:
                return self._found[key][1]
            if key in self._absent:
                self._absent.discard(key)  # true once: the next one who asks may want to know whether it came meanwhile
                return None
        untrusted: RecordUntrusted | None = None
        for remote in self.readers:
            try:
                found = remote.find(key, wanted)
            except RecordUntrusted as error:
                self._counts[remote.name]["untrusted"] += 1
                untrusted = untrusted or error
                continue
            except RemoteFault:  # it is in the remote's report
                continue
            if found is not None:
                self._remember(remote, found)
                return found
            self._counts[remote.name]["misses"] += 1
        if untrusted is not None:
            raise untrusted
        return None

    def _remember(self, remote: RemoteStore, found: Found) -> None:
        key = found.record.recipe.key
        with self._lock:
            if key not in self._found:
                self._counts[remote.name]["hits"] += 1
            self._found[key] = (remote, found)
        self._note(key, found.record)

    def _note(self, key: str, record: Record) -> None:
        with self._lock:
            for output in record.outputs.values():
                self._named.setdefault(output.sha256, set()).add(key)

    def expect(self, keys: Iterable[str]) -> None:
        """A hint: these records will be asked for. Remotes are asked for all of them at once."""
        if not self.readers:
            return
        with self._lock:
            unknown = [key for key in dict.fromkeys(keys) if key not in self._found and key not in self._absent]
        wanted = [key for key in unknown if key not in self.local.has_records(unknown)]
        for remote in self.readers:
            left = []
            for key, found in remote.find_many(wanted):
                if isinstance(found, Found):
                    self._remember(remote, found)
                elif found is None:
                    self._counts[remote.name]["misses"] += 1
                    left.append(key)
            # those that met an error are asked for again, one by one
            wanted = left
            if not wanted:
                return
        with self._lock:
            self._absent.update(wanted)

    def source_of(self, key: str) -> str:
        """Where the record of a key came from: ``local``, or a remote's name."""
        found = self._found.get(key)
        return "local" if found is None else found[0].name

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is a local entry. Raises StoreUnavailable."""
        return self.local.has_records(keys)

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, as core/ports.py says; the winner may be a remote's. Raises BlobMissing, StoreUnavailable."""
        key = record.recipe.key
        if self.readers and not replace and record.recipe.stage == "engine":
            try:
                found = self._find(key)
            except RecordUntrusted:
                found = None
            # Not one that has gaps: that may be why this was built.
            if found is not None and found.record.recipe.same_as(record.recipe) and not self._has_gaps(key):
                return found.record
        record = self.local.put_record(record, replace=replace)
        with self._lock:
            self._found.pop(key, None)
        if self.writers:
            self._note(key, record)
            self.uploads.add(key)
        return record

    def _has_gaps(self, key: str) -> bool:
        """Whether a blob of a remote's record turned out to be gone."""
        remote, found = self._found[key]
        return any((remote.name, sha256) in self._gone for sha256 in found.parts)

    def _lost_race(self, remote: RemoteStore, found: Found) -> None:
        """Another machine's record was first: from the next command on, it is ours."""
        self._counts[remote.name]["lost races"] += 1
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
        return self.local.has(sha256) or any(True for _ in self._places(sha256))

    def get_bytes(self, sha256: str) -> bytes:
        """The bytes, verified. Raises BlobMissing, EntryCorrupt or StoreUnavailable."""
        if sha256 in self._in_memory:
            return self._in_memory[sha256]
        try:
            return self.local.get_bytes(sha256)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
            if self._asking or not self._brought(sha256):
                data = self._in_memory[sha256] = self._from_afar(sha256)
                return data
        return self.local.get_bytes(sha256)

    def copy_to(self, sha256: str, path: str) -> FileStamp | None:
        """Write the verified bytes to `path`, atomically. Returns the file's stamp.

        Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError when `path` cannot be written.
        """
        try:
            return self.local.copy_to(sha256, path)
        except (BlobMissing, EntryCorrupt):
            if not self.readers:
                raise
            if not self._brought(sha256):
                return self._copy_from_afar(sha256, path)
        return self.local.copy_to(sha256, path)

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
            self._each_place(sha256, lambda remote, parts: remote.fetch(sha256, parts, self.local))
        for key in list(self._named.get(sha256, ())):
            self._bring_along(key)

    def _each_place(self, sha256: str, fetch: Any) -> Any:
        for remote, parts in self._places(sha256):
            try:
                return fetch(remote, parts)
            except (BlobMissing, RemoteFault):
                with self._lock:
                    self._gone.add((remote.name, sha256))
                self._counts[remote.name]["blobs gone"] += 1
        raise BlobMissing(f"blob {sha256} is neither here nor in a remote")

    def _from_afar(self, sha256: str) -> bytes:
        data: bytes = self._each_place(sha256, lambda remote, parts: remote.fetch_bytes(sha256, parts))
        return data

    def _copy_from_afar(self, sha256: str, path: str) -> FileStamp | None:
        stamp: FileStamp | None = self._each_place(sha256, lambda remote, parts: remote.copy_parts(sha256, parts, path))
        return stamp

    def _places(self, sha256: str) -> Iterator[_Place]:
        """The remotes that should have a blob, each with the files that it consists of there."""
        for key in list(self._named.get(sha256, ())):
            if key not in self._found and self.readers:
                try:
                    self._find(key)
                except RecordUntrusted:
                    continue
            if key in self._found:
                remote, found = self._found[key]
                if sha256 in found.parts and (remote.name, sha256) not in self._gone:
                    yield remote, found.parts[sha256]

    def _bring_along(self, key: str) -> None:
        """Complete a record whose other blobs are small, and keep it when it is complete (rule 2)."""
        if key not in self._found:
            return
        remote, found = self._found[key]
        try:
            for output in found.record.outputs.values():
                if not self.local.has(output.sha256):
                    if output.size > SMALL:
                        return
                    remote.fetch(output.sha256, found.parts[output.sha256], self.local)
            self.local.put_found(found.record, found.document, found.signatures)
        except StoreError:
            return  # it stays where it is

    # -- the rest

    def only_asks(self) -> None:
        """For a command that only says what is there (rule 6), until something is put."""
        self._asking = True
        self.local.only_asks()

    def session(self) -> AbstractContextManager[None]:
        """What is read or written from here to the end of the session is safe from collection. Raises StoreUnavailable."""
        return self.local.session()

    def building(self, key: str) -> AbstractContextManager[None]:
        """Held while a key is being built on this machine. Raises StoreUnavailable."""
        return self.local.building(key)

    def finish(self) -> None:
        """Come back when all that was put is where it can be."""
        self.uploads.finish()

    def close(self) -> None:
        """Let go of connections and threads. What was not sent yet is not."""
        self.uploads.close()
        for remote in {id(each): each for each in (*self.readers, *self.writers)}.values():
            remote.close()

    def warnings(self) -> list[str]:
        """What a person should know of the remotes, once each."""
        said = []
        for report in self.reports():
            said += [f"{report['name']}: {text}" for text in report.get("warnings", ())]
            if number := report["untrusted"]:
                said.append(f"{report['name']}: {number} of its records do not count here (trtbuild why)")
            if number := report["records_not_sent"]:
                said.append(f"{report['name']}: {number} records could not be sent (trtbuild cache push sends them)")
        return said

    def reports(self) -> list[dict[str, Any]]:
        """What each remote was used for, and what it did wrong; as ``--json`` shows it."""
        reports = []
        for remote in {each.name: each for each in (*self.readers, *self.writers)}.values():
            counts = self._counts[remote.name]
            report = getattr(remote.transport, "report", None)
            reports.append(
                {
                    "name": remote.name,
                    "place": remote.transport.place,
                    "hits": counts["hits"],
                    "misses": counts["misses"],
                    "untrusted": counts["untrusted"],
                    "blobs_gone": counts["blobs gone"],
                    "lost_races": counts["lost races"],
                    "records_sent": self.uploads.sent[remote.name],
                    "records_not_sent": self.uploads.not_sent[remote.name],
                    **(report().to_json() if report is not None else {}),
                }
            )
        return reports
