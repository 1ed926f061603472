"""Finds records in remotes, and remembers for one command which remotes have which records and blobs.

Rules
1. Remotes are asked in order. A record comes from the first remote that has a trusted record. The remotes after it are
   asked only if this remote lacks a blob of the record.
2. A record that was found is not requested again. A record that was not found is requested each time, because it may have
   been written in the meantime. Only the first lookup after `prefetch_records` sends no request, because
   `prefetch_records` has just sent it.
3. A remote's fault is handled like a miss. The remote's report contains the fault.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import RecordUntrusted, RemoteFault
from trtbuild.store.remote.store import Found, RemoteStore

#: A function that returns the reason why a trusted record is not used, or None. It applies the lock file, which may name
#: another record. Its arguments are the key, the record, and whether the record is a last resort. The last resort is a
#: local record, if no remote has the record that the lock file names.
RefusalRule = Callable[[str, Record, bool], "str | None"]


def refuse_no_record(key: str, record: Record, is_last_resort: bool) -> str | None:
    """Refuse no record."""
    return None


class FoundRecords:
    """The records and blobs that were found in `readers`. Several threads may call its methods."""

    def __init__(self, readers: tuple[RemoteStore, ...]) -> None:
        self.readers = readers
        self.lock_refusal: RefusalRule = refuse_no_record
        self._lock = threading.RLock()
        #: Key → a lock that is held while the remotes are asked for the record, so that other threads wait for the result.
        self._key_locks: dict[str, threading.Lock] = {}
        #: Key → the remotes that have the record, in order.
        self._found: dict[str, list[tuple[RemoteStore, Found]]] = {}
        #: Key → the number of remotes that have been asked.
        self._asked_count: dict[str, int] = {}
        #: Keys that `prefetch_records` found in no remote.
        self._absent_keys: set[str] = set()
        #: Blob → the keys of records that name it.
        self._keys_by_blob: dict[str, set[str]] = {}
        #: The (remote, blob) pairs in which a record of the remote names the blob, but the blob could not be fetched.
        self._missing_blobs: set[tuple[str, str]] = set()
        #: The (remote, key) pairs of records that are not trusted, or that the lock file refuses.
        self._untrusted_records: set[tuple[str, str]] = set()
        #: (name of a remote, event) → the number of these events (`counts_of`).
        self._counts: Counter[tuple[str, str]] = Counter()

    # -- records

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The record of the first remote that has a trusted one. Raises RecordUntrusted if all records are untrusted."""
        with self._key_lock(key):
            with self._lock:
                if key in self._found:
                    return self._found[key][0][1]
                if key in self._absent_keys:
                    self._absent_keys.discard(key)
                    return None
                self._asked_count[key] = 0
            return self._find_in_next(key, wanted)

    def _key_lock(self, key: str) -> threading.Lock:
        with self._lock:
            return self._key_locks.setdefault(key, threading.Lock())

    def _is_in_more_remotes(self, key: str, count: int) -> bool:
        """Whether more than `count` remotes have the record. Asks further remotes if necessary."""
        with self._key_lock(key):
            return count < len(self._found.get(key, ())) or self._find_in_next(key) is not None

    def _find_in_next(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """Ask further remotes, in order (rule 1), until one has the record. Returns the record, or None. The caller holds
        the key's lock. Raises RecordUntrusted."""
        untrusted: RecordUntrusted | None = None
        while (index := self._asked_count.get(key, 0)) < len(self.readers):
            remote = self.readers[index]
            self._asked_count[key] = index + 1
            try:
                found = remote.find(key, wanted)
                if found is not None and (why := self.lock_refusal(key, found.record, False)) is not None:
                    raise RecordUntrusted(why)
            except RecordUntrusted as error:
                with self._lock:
                    self._untrusted_records.add((remote.name, key))
                untrusted = untrusted or error
            except RemoteFault:  # rule 3
                continue
            else:
                if found is not None:
                    self._add_found(remote, found, index)
                    return found
                self.count_event(remote, "misses")
        if untrusted is not None:
            raise untrusted
        return None

    def _add_found(self, remote: RemoteStore, found: Found, index: int) -> None:
        key = found.record.recipe.key
        with self._lock:
            if key not in self._found:
                self.count_event(remote, "hits")
            self._found.setdefault(key, []).append((remote, found))
            self._asked_count[key] = index + 1
        self.note_record(key, found.record)

    def prefetch_records(self, keys: Iterable[str], local_keys: Callable[[Iterable[str]], set[str]]) -> None:
        """Look up these records together, because they will be requested soon. Records for which `local_keys` finds a local
        record are left out."""
        with self._lock:
            unknown = [key for key in dict.fromkeys(keys) if key not in self._found and key not in self._absent_keys]
        known = local_keys(unknown)
        remaining = [key for key in unknown if key not in known]
        for index, remote in enumerate(self.readers):
            not_found = []
            for key, found in remote.find_many(remaining):
                if isinstance(found, Found):
                    if self.lock_refusal(key, found.record, False) is None:
                        self._add_found(remote, found, index)
                elif found is None:
                    self.count_event(remote, "misses")
                    not_found.append(key)
            # `find` will request the records with an error, and those that the lock file refuses, again.
            remaining = not_found
            if not remaining:
                return
        with self._lock:
            self._absent_keys.update(remaining)

    def first_hit(self, key: str) -> tuple[RemoteStore, Found] | None:
        """The first remote in which a record was found, and the record. Sends no request."""
        places = self._found.get(key)
        return places[0] if places else None

    def documents(self, key: str) -> list[bytes]:
        """The documents of the records that were found under a key. Sends no request."""
        return [found.document for _, found in list(self._found.get(key, ()))]

    def forget_record(self, key: str) -> None:
        """Forget a record: it is in the local store now."""
        with self._lock:
            self._found.pop(key, None)
            self._asked_count.pop(key, None)

    def lacks_blob(self, key: str) -> bool:
        """Whether a blob of the record could not be fetched from the first remote in which the record was found."""
        place = self.first_hit(key)
        if place is None:
            return False
        remote, found = place
        return any((remote.name, sha256) in self._missing_blobs for sha256 in found.files_by_blob)

    # -- blobs

    def note_record(self, key: str, record: Record) -> None:
        """Remember which blobs a record names. A remote with this record may have the blobs that are missing here."""
        with self._lock:
            for output in record.outputs.values():
                self._keys_by_blob.setdefault(output.sha256, set()).add(key)

    def keys_naming(self, sha256: str) -> list[str]:
        """The keys of the records that name a blob."""
        with self._lock:
            return list(self._keys_by_blob.get(sha256, ()))

    def remotes_with_blob(self, sha256: str) -> Iterator[tuple[RemoteStore, tuple[Output, ...]]]:
        """The remotes that should have a blob, each with the blob's files there: one file, or its chunks."""
        for key in self.keys_naming(sha256):
            index = 0
            while True:
                places = self._found.get(key, [])
                if index >= len(places):  # all were yielded, or another thread has called `forget_record`
                    try:
                        if not self._is_in_more_remotes(key, index):
                            break
                    except RecordUntrusted:
                        break
                    continue
                remote, found = places[index]
                index += 1
                if sha256 in found.files_by_blob and (remote.name, sha256) not in self._missing_blobs:
                    yield remote, found.files_by_blob[sha256]

    def note_missing_blob(self, remote: RemoteStore, sha256: str, *, is_gone: bool) -> None:
        """Remember that a blob could not be fetched from a remote whose record names it.

        `is_gone` means that the remote has answered, and has no blob or a damaged one. Only such a blob is counted."""
        with self._lock:
            self._missing_blobs.add((remote.name, sha256))
        if is_gone:
            self.count_event(remote, "blobs_gone")

    # -- counts

    def count_event(self, remote: RemoteStore, event: str) -> None:
        """Add one to the count of an event (`counts_of`)."""
        with self._lock:
            self._counts[remote.name, event] += 1

    def counts_of(self, remote: RemoteStore) -> dict[str, int]:
        """A remote's hits, misses, missing blobs, lost races (another machine published first) and untrusted records."""
        events = ("hits", "misses", "blobs_gone", "lost_races")
        with self._lock:
            counted = {event: self._counts[remote.name, event] for event in events}
            return {**counted, "untrusted": sum(name == remote.name for name, _ in self._untrusted_records)}
