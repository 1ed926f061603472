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
9. Where trusted keys are configured, a record is judged before its document is read. One that does not count is left for
   those for whom it does; ours stands under its domain's key then (core/recipes/trust.py, rule 4).
10. Who only asks (`only_asks`) touches nothing and holds no lock: the answer is of the moment, nothing is kept for it.
    The first thing that is put ends the asking.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Everyone, Signature, Trust, domain_key, places
from trtbuild.errors import EntryCorrupt, RecordUntrusted, StoreUnavailable
from trtbuild.store.local import leases
from trtbuild.store.local.blobs import LocalBlobs
from trtbuild.store.trust import action_result
from trtbuild.store.trust.action_result import ActionResult, record_document

_log = logging.getLogger("trtbuild.store")

T = TypeVar("T")


@dataclass(frozen=True)
class _Standing:
    """A record that counts: the AC key under which it stands, its entry, its document."""

    name: str
    entry: ActionResult
    document: bytes
    record: Record


class LocalStore(LocalBlobs):
    """The `Store` of core/recipes/ports.py in the directory `root`, which is made when something is first written.

    Raises StoreUnavailable when `root` is a store of a format that this code does not know. An object may be shared
    between threads, and any number of processes may use one directory. What was quarantined is logged, as a warning
    of the logger `trtbuild.store`.
    """

    def __init__(self, root: Path | str, trust: Trust | None = None) -> None:
        super().__init__(root)
        self.trust: Trust = trust or Everyone()

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record, or None; the sooner read if it is of the `wanted` recipe.

        A corrupt one is moved to quarantine and raises EntryCorrupt; one that does not count raises RecordUntrusted; also
        StoreUnavailable.
        """
        if self.trust.enforced:
            standing = self._standing(key, wanted)
            return None if standing is None else standing.record
        with self.entries.looking():  # once for both files of the record
            document = self._entry(key, record_document)
            found = None if document is None else self.entries.find("cas", document.sha256)
        data = None if document is None or found is None else self._document(key, document)
        # collected, or quarantined before, is as good as no record, and put_record writes another
        return None if data is None else self._parsed(key, key, data, wanted)

    def entry(self, key: str) -> tuple[ActionResult, bytes] | None:
        """The entry of the record that counts here, and the bytes of its document, verified. Raises as `get_record`."""
        standing = self._standing(key, None)
        return None if standing is None else (standing.entry, standing.document)

    def _standing(self, key: str, wanted: Recipe | None) -> _Standing | None:
        """The first record that counts, of the places where one may stand. What is wrong with the others matters only then
        when there is none."""
        problem: EntryCorrupt | RecordUntrusted | None = None
        untrusted_in_the_way = False
        for name in places(self.trust, key):
            try:
                standing = self._at(name, key, wanted)
            except (EntryCorrupt, RecordUntrusted) as error:
                if problem is None or (untrusted_in_the_way and isinstance(error, RecordUntrusted)):
                    # Of a domain that is read, it says more: that the key expired, not that another's is unsigned.
                    problem = error
                untrusted_in_the_way = name == key and isinstance(error, RecordUntrusted)
                continue
            if standing is not None:
                return standing
        if problem is not None:
            raise problem
        return None

    def _at(self, name: str, key: str, wanted: Recipe | None) -> _Standing | None:
        """The record of `key` whose entry is called `name`."""
        with self.entries.looking():
            entry = self._entry(name, ActionResult.from_bytes)
            if entry is None:
                return None
            document = entry.document
            if document is None:
                raise self._corrupt(name, "it names no record document")
            if self.entries.find("cas", document.sha256) is None:
                return None
        why_not = self.trust.refusal(key, document, entry.signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record in the local cache does not count: {why_not}")
        data = self._document(name, document)
        if data is None:
            return None
        return _Standing(name, entry, data, self._parsed(name, key, data, wanted))

    def _parsed(self, name: str, key: str, data: bytes, wanted: Recipe | None) -> Record:
        try:
            record = Record.from_bytes(data, wanted)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._corrupt(name, f"its document is no record: {error}") from error
        if record.recipe.key != key:
            raise self._corrupt(name, "it is the record of another key")
        return record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` under which there is an entry, which is touched and not read. Raises StoreUnavailable."""
        with self.entries.looking():
            return {key for key in keys if self._touched(places(self.trust, key))}

    def _touched(self, names: Iterable[str]) -> bool:
        found = [self.entries.find("ac", name) is not None for name in names]  # all: which of them counts is not known
        return any(found)

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
        """Publish a record that was made here, after its blobs, signed if this machine signs. Write-once: the winner of a
        race is returned, which may be another's. With `replace`, this one wins.

        Raises BlobMissing when an output is not in the store, StoreUnavailable.
        """
        document = record.to_bytes()
        signatures = self.trust.sign(record.recipe.key, _described(document))
        return self._publish(record, document, signatures, replace=replace)

    def put_found(
        self, record: Record, document: bytes, signatures: Sequence[Signature] = (), *, replace: bool = False
    ) -> Record:
        """Publish a record that comes from elsewhere, after its blobs: its document's bytes as they are, and the signatures
        that it came with. Write-once, or not, as `put_record`.

        Raises RecordUntrusted when it does not count here, BlobMissing, StoreUnavailable.
        """
        why_not = self.trust.refusal(record.recipe.key, _described(document), signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record {record.recipe.key} does not count: {why_not}")
        return self._publish(record, document, signatures, replace=replace)

    def _publish(self, record: Record, document: bytes, signatures: Sequence[Signature], *, replace: bool) -> Record:
        key = record.recipe.key
        self.entries.asking = False
        self.entries.prepare()
        own_session = nullcontext() if self.entries.sessions.active else self.session()
        with own_session, leases.publishing(self.entries.layout):
            winner = None if replace else self._usable(key, record)
            if winner is not None:
                return winner
            blobs = {output.sha256: self.parts(output.sha256) for output in record.outputs.values()}
            kept = self._put_small(memoryview(document))  # one file, however large: its entry names it as one
            entry = action_result.record_entry(kept, blobs, signatures)
            place = self._free_place(key, kept, signatures)
            if place is not None:
                self.entries.write("ac", place, entry.to_bytes())
        return record

    def _usable(self, key: str, wanted: Record) -> Record | None:
        """The record that is there already, when it is of the same recipe, counts, and all of its blobs are there."""
        try:
            standing = self._standing(key, None)
        except (EntryCorrupt, RecordUntrusted):
            return None
        if standing is None:
            return None
        found = standing.record
        if not found.recipe.same_as(wanted.recipe):
            self.entries.quarantine("ac", standing.name, "the recipe differs from one that has the same key")
            return None
        return found if all(self.has(output.sha256) for output in found.outputs.values()) else None

    def _free_place(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        """The AC key for a record: its own, unless another's stands there that does not count here (rule 9). None: a record
        that nobody vouches for is in its place nowhere then."""
        if not self.trust.enforced:
            return key
        try:
            self._at(key, key, None)
        except RecordUntrusted:
            voucher = self.trust.voucher(key, document, signatures)
            return None if voucher is None else domain_key(voucher.domain, key)
        except EntryCorrupt:
            pass
        return key

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
        """For a command that only says what is there: rule 10 holds from here on, until something is put."""
        self.entries.asking = True

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Held while a key is being built, so that two builds at once build it once. Released when the process dies.

        Waits for whoever holds it, another thread of this process too. Raises StoreUnavailable.
        """
        self.entries.prepare()
        with leases.building(self.entries.layout, key):
            yield


def _described(document: bytes) -> Output:
    return Output(hashlib.sha256(document).hexdigest(), len(document))
