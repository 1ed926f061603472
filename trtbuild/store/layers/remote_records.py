"""The records that one command has found in remotes, and the places of their blobs.

Rules
1. Remotes are asked in order. A record comes from the first remote that has a trusted record. The remotes after it are
   asked only if a blob is missing there.
2. A record that was found is not requested again. A record that was not found is requested each time, because it may have
   been written in the meantime. Only the first lookup after an `expect` that did not find it sends no request.
3. A remote's fault counts as a miss. The remote's report contains the fault.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import RecordUntrusted, RemoteFault
from trtbuild.store.remote.store import Found, RemoteStore

#: Returns the reason why a trusted record is not used (a lock file names another record), or None. The last argument says
#: whether a local record may be accepted because no remote has a better one.
Refuses = Callable[[str, Record, bool], "str | None"]


def nothing(key: str, record: Record, local: bool) -> str | None:
    """Refuse no record."""
    return None


class FoundRecords:
    """The records and blobs that were found in `readers`. Several threads may call its methods."""

    def __init__(self, readers: tuple[RemoteStore, ...]) -> None:
        self.readers = readers
        self.refuses: Refuses = nothing
        self._lock = threading.RLock()
        #: By key: a lock that is held while the remotes are asked for the record, so that other threads wait for the
        #: result.
        self._key_locks: dict[str, threading.Lock] = {}
        #: By key: the remotes that have the record, in order.
        self._found: dict[str, list[tuple[RemoteStore, Found]]] = {}
        #: By key: the number of remotes that have been asked.
        self._asked_count: dict[str, int] = {}
        #: Keys that `expect` found in no remote.
        self._absent: set[str] = set()
        #: Blob → the keys of records that name it.
        self._keys_by_blob: dict[str, set[str]] = {}
        #: The (remote, blob) pairs in which a record of the remote names the blob, but the remote does not have it.
        self._missing_blobs: set[tuple[str, str]] = set()
        #: (remote, key) pairs.
        self._untrusted: set[tuple[str, str]] = set()
        self._counts: Counter[tuple[str, str]] = Counter()

    # -- records

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The record of the first remote that has a trusted one. Raises RecordUntrusted if all records are untrusted."""
        with self._key_lock(key):
            with self._lock:
                if key in self._found:
                    return self._found[key][0][1]
                if key in self._absent:
                    self._absent.discard(key)
                    return None
                self._asked_count[key] = 0
            return self._find_in_next(key, wanted)

    def _key_lock(self, key: str) -> threading.Lock:
        with self._lock:
            return self._key_locks.setdefault(key, threading.Lock())

    def _has_more(self, key: str, number: int) -> bool:
        """Whether more than `number` remotes have a record. Asks further remotes if necessary."""
        with self._key_lock(key):
            return number < len(self._found.get(key, ())) or self._find_in_next(key) is not None

    def _find_in_next(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The record from the first remote that has it, of those that were not asked yet (rule 1). The caller holds the
        key's lock. Raises RecordUntrusted."""
        untrusted: RecordUntrusted | None = None
        while (number := self._asked_count.get(key, 0)) < len(self.readers):
            remote = self.readers[number]
            self._asked_count[key] = number + 1
            try:
                found = remote.find(key, wanted)
                if found is not None and (why := self.refuses(key, found.record, False)) is not None:
                    raise RecordUntrusted(why)
            except RecordUntrusted as error:
                self._untrusted.add((remote.name, key))
                untrusted = untrusted or error
            except RemoteFault:  # rule 3
                continue
            else:
                if found is not None:
                    self._remember(remote, found, number)
                    return found
                self.count(remote, "misses")
        if untrusted is not None:
            raise untrusted
        return None

    def _remember(self, remote: RemoteStore, found: Found, number: int) -> None:
        key = found.record.recipe.key
        with self._lock:
            if key not in self._found:
                self.count(remote, "hits")
            self._found.setdefault(key, []).append((remote, found))
            self._asked_count[key] = number + 1
        self.note(key, found.record)

    def expect(self, keys: Iterable[str], local_keys: Callable[[Iterable[str]], set[str]]) -> None:
        """Look up records that will be requested soon, all at once. `local_keys` selects the keys of local records, which
        are not looked up."""
        with self._lock:
            unknown = [key for key in dict.fromkeys(keys) if key not in self._found and key not in self._absent]
        known = local_keys(unknown)
        wanted = [key for key in unknown if key not in known]
        for number, remote in enumerate(self.readers):
            not_found = []
            for key, found in remote.find_many(wanted):
                if isinstance(found, Found):
                    if self.refuses(key, found.record, False) is None:
                        self._remember(remote, found, number)
                elif found is None:
                    self.count(remote, "misses")
                    not_found.append(key)
            wanted = not_found  # records with an error are requested again later, one by one
            if not wanted:
                return
        with self._lock:
            self._absent.update(wanted)

    def found(self, key: str) -> tuple[RemoteStore, Found] | None:
        """The first remote that was found to have a record, and the record. Sends no request."""
        places = self._found.get(key)
        return places[0] if places else None

    def forget(self, key: str) -> None:
        """Forget a record: it is in the local store now."""
        with self._lock:
            self._found.pop(key, None)
            self._asked_count.pop(key, None)

    def has_gaps(self, key: str) -> bool:
        """Whether a blob of the record is missing in the remote where it was found first."""
        place = self.found(key)
        return place is not None and any((place[0].name, sha256) in self._missing_blobs for sha256 in place[1].parts)

    # -- blobs

    def note(self, key: str, record: Record) -> None:
        """Store which blobs a record names: a remote may have the blobs that are missing here."""
        with self._lock:
            for output in record.outputs.values():
                self._keys_by_blob.setdefault(output.sha256, set()).add(key)

    def keys_of(self, sha256: str) -> list[str]:
        """The records that name a blob."""
        with self._lock:
            return list(self._keys_by_blob.get(sha256, ()))

    def places(self, sha256: str) -> Iterator[tuple[RemoteStore, tuple[Output, ...]]]:
        """The remotes that should have a blob, each with the blob's files there."""
        for key in self.keys_of(sha256):
            number = 0
            while True:
                known = self._found.get(key, [])
                if number == len(known):
                    try:
                        if not self._has_more(key, number):
                            break
                    except RecordUntrusted:
                        break
                    continue
                remote, found = known[number]
                number += 1
                if sha256 in found.parts and (remote.name, sha256) not in self._missing_blobs:
                    yield remote, found.parts[sha256]

    def gone(self, remote: RemoteStore, sha256: str) -> None:
        """Note that a remote names a blob that it does not have."""
        with self._lock:
            self._missing_blobs.add((remote.name, sha256))
        self.count(remote, "blobs_gone")

    # -- counts

    def count(self, remote: RemoteStore, event: str) -> None:
        with self._lock:
            self._counts[remote.name, event] += 1

    def counts(self, remote: RemoteStore) -> dict[str, int]:
        """A remote's hits, misses, missing blobs, lost races and untrusted records."""
        events = ("hits", "misses", "blobs_gone", "lost_races")
        counted = {event: self._counts[remote.name, event] for event in events}
        return {**counted, "untrusted": sum(name == remote.name for name, _ in self._untrusted)}
