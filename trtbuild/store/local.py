"""The local store: a directory, one file per entry. The file system is the truth. Format: cache/README.md.

Rules
1. A blob of at most `chunking.MAX_SIZE` bytes is one CAS file. A larger one is its chunks, each a CAS file, and a
   chunk list: the AC entry under `list_key` of the blob.
2. Blobs first, their list after them, the record last; each is durable before the next is visible (publication.py).
   So what a process leaves that is killed at any moment is whole entries, and files in ``tmp/``.
3. What is read is verified, always: a blob against its own SHA-256, whatever its list says. What is wrong goes to
   ``quarantine/`` and is EntryCorrupt: each chunk that is not what it is called, or else the list.
4. Finding is touching. An entry that is found is given a new mtime, under the shared store-wide lock, unless its
   mtime is at or after the start of this process's latest session. If it vanished before that, it was not found.
5. So an entry that was once found, read or written in a session is not collected before that session ends:
   a. its mtime is at or after the session's start S, by rule 4, or because it was written after S;
   b. a collection removes an entry only if its mtime is before a cut-off, which is at most the collection's own start
      and the start of every session that lived then; it looks at the mtime and removes under the exclusive lock, so
      no touch comes between;
   c. a session that a collection did not see at its start began later, for sessions begin under the shared lock, and
      collections under the exclusive one. Then S is at or after the collection's start, and so after the cut-off.
   All of these times are mtimes that one file system gave. A collection's slack is for the coarseness of its clock.
   A process without a session touches whatever it finds: so its parent's session protects what it uses.
6. A record is published within a session (its own, if there is no other) in which all of its blobs were found. So they
   are there when it becomes visible, and a later collection sees the record before it looks for blobs that no record
   names. Blobs that were put outside of a session may be gone by then: BlobMissing, never a record without its blobs.
7. Records are write-once, by ``locks/records``. One whose blobs are not all there is not in the way: nobody can use it.
8. An entry of the right name and size is not read when the same bytes are put again; of another size, it is replaced.
9. Who only asks (`only_asks`) touches nothing and holds no lock: the answer is of the moment, nothing is kept for it. The
   first thing that is put ends the asking.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Output, Record
from trtbuild.errors import EntryCorrupt, StoreUnavailable
from trtbuild.store import action_result, leases
from trtbuild.store.action_result import ActionResult, record_document
from trtbuild.store.blobs import LocalBlobs

_log = logging.getLogger("trtbuild.store")

T = TypeVar("T")


class LocalStore(LocalBlobs):
    """The `Store` of core/ports.py in the directory `root`, which is made when something is first written.

    Raises StoreUnavailable when `root` is a store of a format that this code does not know. An object may be shared
    between threads, and any number of processes may use one directory. What was quarantined is logged, as a warning
    of the logger `trtbuild.store`.
    """

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None; the sooner read if it is of the `wanted` recipe.

        A corrupt one is moved to quarantine and raises EntryCorrupt; also StoreUnavailable.
        """
        with self.entries.looking():  # once for both files of the record
            document = self._entry(key, record_document)
            found = None if document is None else self.entries.find("cas", document.sha256)
        data = None if document is None or found is None else self._document(key, document)
        if data is None:  # collected, or quarantined before: as good as no record, and put_record writes another
            return None
        try:
            record = Record.from_bytes(data, wanted)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._corrupt(key, f"its document is no record: {error}") from error
        if record.recipe.key != key:
            raise self._corrupt(key, "it is the record of another key")
        return record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is an entry, which is touched and not read. Raises StoreUnavailable."""
        with self.entries.looking():
            return {key for key in keys if self.entries.find("ac", key) is not None}

    def get_action(self, key: str) -> ActionResult | None:
        """The entry under an AC key. None: not there. EntryCorrupt: it was not well-formed, and is in quarantine."""
        return self._entry(key, ActionResult.from_bytes)

    def _entry(self, key: str, parse: Callable[[bytes], T]) -> T | None:
        with self.entries.looking():
            found = self.entries.find("ac", key)
        data = None if found is None else self.entries.read("ac", key)
        if data is None:
            return None
        try:
            return parse(data)
        except ValueError as error:
            raise self._corrupt(key, str(error)) from error

    def _document(self, key: str, document: Output) -> bytes | None:
        data = self.entries.read("cas", document.sha256)
        if data is None:
            return None
        if len(data) != document.size or hashlib.sha256(data).hexdigest() != document.sha256:
            self.entries.quarantine("cas", document.sha256, f"not the record document that {key} names")
            raise self._corrupt(key, "its document is not what its name says")
        return data

    def _corrupt(self, key: str, why: str) -> EntryCorrupt:
        self.entries.quarantine("ac", key, why)
        return EntryCorrupt(f"the record {key} is corrupt ({why}); it was moved to quarantine")

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record, after its blobs. Write-once: the winner of a race is returned, which may be another's.
        With `replace`, this one wins. Raises BlobMissing when an output is not in the store, StoreUnavailable."""
        key = record.recipe.key
        self.entries.asking = False
        self.entries.prepare()
        own_session = nullcontext() if self.entries.sessions.active else self.session()
        with own_session, leases.publishing(self.entries.layout):
            winner = None if replace else self._usable(key, record)
            if winner is not None:
                return winner
            blobs = {output.sha256: self.parts(output.sha256) for output in record.outputs.values()}
            document = self.put_bytes(record.to_bytes())
            self.entries.write("ac", key, action_result.record_entry(document, blobs).to_bytes())
        return record

    def _usable(self, key: str, wanted: Record) -> Record | None:
        """The record that is there already, when it is of the same recipe and all of its blobs are there."""
        try:
            found = self.get_record(key)
        except EntryCorrupt:
            return None
        if found is None:
            return None
        if not found.recipe.same_as(wanted.recipe):
            self.entries.quarantine("ac", key, "the recipe differs from one that has the same key")
            return None
        return found if all(self.has(output.sha256) for output in found.outputs.values()) else None

    def session(self) -> AbstractContextManager[None]:
        """What is read or written from here to the end of the session is safe from collection.

        A store that cannot be written has no sessions, and is read without. Raises StoreUnavailable.
        """
        return self._session()

    @contextmanager
    def _session(self) -> Iterator[None]:
        with suppress(StoreUnavailable):
            self.entries.prepare()
        with self.entries.sessions.hold():
            yield

    def only_asks(self) -> None:
        """For a command that only says what is there: rule 9 holds from here on, until something is put."""
        self.entries.asking = True

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Held while a key is being built, so that two builds at once build it once. Released when the process dies.

        Waits for whoever holds it, another thread of this process too. Raises StoreUnavailable.
        """
        self.entries.prepare()
        with leases.building(self.entries.layout, key):
            yield
