"""What remotes have: records that were found there, and the places of their blobs. For one command.

Rules
1. Remotes are asked in order, and the first one that has a record that counts is the one it comes from. Those after it are
   asked only when a blob turns out to be gone there.
2. What was found stays found. What was not found is asked for again each time, since it may have come meanwhile; but what
   was not found ahead (`expect`) is taken as not there once.
3. A remote's fault is as good as nothing found; the remote's own report says what it was.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import RecordUntrusted, RemoteFault
from trtbuild.store.remote.store import Found, RemoteStore

#: Says why a record is not used though it counts, or None: there is a lock file that names another one. A local one
#: (the last argument) may be tolerated where no remote has a better one.
Refuses = Callable[[str, Record, bool], "str | None"]


def nothing(key: str, record: Record, local: bool) -> str | None:
    """Refuses nothing."""
    return None


class Afar:
    """The records and blobs of `readers`. Its methods may be called by several threads."""

    def __init__(self, readers: tuple[RemoteStore, ...]) -> None:
        self.readers = readers
        self.refuses: Refuses = nothing
        self._lock = threading.RLock()
        #: By key: held while remotes are asked for its record, so that others wait for what comes of it.
        self._turns: dict[str, threading.Lock] = {}
        #: By key: where the record was found, in order, and how many of the remotes have been asked.
        self._found: dict[str, list[tuple[RemoteStore, Found]]] = {}
        self._asked: dict[str, int] = {}
        #: Keys that were looked for ahead, and are nowhere.
        self._absent: set[str] = set()
        #: Blob → keys of records that name it; and the places that turned out not to have it.
        self._named: dict[str, set[str]] = {}
        self._gone: set[tuple[str, str]] = set()
        self._untrusted: set[tuple[str, str]] = set()
        self._counts: Counter[tuple[str, str]] = Counter()

    # -- records

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The first remote's record. Raises RecordUntrusted when there are only such as do not count."""
        with self._turn(key):
            with self._lock:
                if key in self._found:
                    return self._found[key][0][1]
                if key in self._absent:
                    self._absent.discard(key)
                    return None
                self._asked[key] = 0
            return self._next(key, wanted)

    def _turn(self, key: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(key, threading.Lock())

    def _has_more(self, key: str, number: int) -> bool:
        """Whether a record is in more than `number` places, as far as that is known or can be found out."""
        with self._turn(key):
            return number < len(self._found.get(key, ())) or self._next(key) is not None

    def _next(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The record of the next remote that has not been asked for it (rule 1); for who has its turn. Raises
        RecordUntrusted."""
        untrusted: RecordUntrusted | None = None
        while (number := self._asked.get(key, 0)) < len(self.readers):
            remote = self.readers[number]
            self._asked[key] = number + 1
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
            self._asked[key] = number + 1
        self.note(key, found.record)

    def expect(self, keys: Iterable[str], here: Callable[[Iterable[str]], set[str]]) -> None:
        """These records will be asked for, unless they are `here`. Remotes are asked for all of them at once."""
        with self._lock:
            unknown = [key for key in dict.fromkeys(keys) if key not in self._found and key not in self._absent]
        known = here(unknown)
        wanted = [key for key in unknown if key not in known]
        for number, remote in enumerate(self.readers):
            left = []
            for key, found in remote.find_many(wanted):
                if isinstance(found, Found):
                    if self.refuses(key, found.record, False) is None:
                        self._remember(remote, found, number)
                elif found is None:
                    self.count(remote, "misses")
                    left.append(key)
            wanted = left  # those that met an error are asked for again, one by one
            if not wanted:
                return
        with self._lock:
            self._absent.update(wanted)

    def found(self, key: str) -> tuple[RemoteStore, Found] | None:
        """Where a record was found first, without asking."""
        places = self._found.get(key)
        return places[0] if places else None

    def forget(self, key: str) -> None:
        """The record is here now."""
        with self._lock:
            self._found.pop(key, None)
            self._asked.pop(key, None)

    def has_gaps(self, key: str) -> bool:
        """Whether a blob of a record turned out to be gone where it was found first."""
        place = self.found(key)
        return place is not None and any((place[0].name, sha256) in self._gone for sha256 in place[1].parts)

    # -- blobs

    def note(self, key: str, record: Record) -> None:
        """A record that names blobs, wherever it is: if they are gone here, a remote may have them."""
        with self._lock:
            for output in record.outputs.values():
                self._named.setdefault(output.sha256, set()).add(key)

    def keys_of(self, sha256: str) -> list[str]:
        """The records that name a blob."""
        with self._lock:
            return list(self._named.get(sha256, ()))

    def places(self, sha256: str) -> Iterator[tuple[RemoteStore, tuple[Output, ...]]]:
        """The remotes that should have a blob, each with the files that it consists of there."""
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
                if sha256 in found.parts and (remote.name, sha256) not in self._gone:
                    yield remote, found.parts[sha256]

    def gone(self, remote: RemoteStore, sha256: str) -> None:
        """A blob that a remote named could not be had from it."""
        with self._lock:
            self._gone.add((remote.name, sha256))
        self.count(remote, "blobs_gone")

    # -- what came of it

    def count(self, remote: RemoteStore, what: str) -> None:
        with self._lock:
            self._counts[remote.name, what] += 1

    def counts(self, remote: RemoteStore) -> dict[str, int]:
        """How many records a remote had and had not, how many did not count, and the rest that was counted."""
        counted = {what: self._counts[remote.name, what] for what in ("hits", "misses", "blobs_gone", "lost_races")}
        return {**counted, "untrusted": sum(name == remote.name for name, _ in self._untrusted)}
