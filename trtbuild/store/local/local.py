"""The local store: a directory with one file for each entry, and no other state. Format: docs/store-format.md.

An entry is a CAS file (bytes, named by their SHA-256) or an AC entry (a record or a chunk list, named by a key). A
*session* is the time in which a process uses the store. A *collection* removes old entries (store/collection).

Rules
1. A blob of at most `chunking.MAX_SIZE` bytes is one CAS file. A larger blob consists of chunks, each a CAS file, and of a
   chunk list: the AC entry under `list_key` of the blob.
2. A blob's bytes are written first, then its chunk list, then the record. Each is durable before the next is visible
   (publication.py). So a process that is killed leaves only complete entries, and files in ``tmp/``.
3. The bytes of CAS files are verified before they are used. A blob is compared with its own SHA-256, even if all its chunks
   are right. A damaged entry is moved to ``quarantine/``, and EntryCorrupt is raised. If a blob with chunks is damaged, the
   chunks with a wrong digest are the damaged entries. If there is no such chunk, the chunk list is the damaged entry.
4. A lookup touches the entry that it finds: it gives the entry a new mtime, under the shared store-wide lock (locks.py).
   The touch is left out if the mtime is at or after the start of this process's latest session. An entry that vanishes
   before the touch counts as missing.
5. An entry that was found, read or written in a session is not collected before that session ends, for these reasons:
   a. Its mtime is at or after the session's start S, by rule 4, or because it was written after S.
   b. A collection removes an entry only if its mtime is before a cut-off. The cut-off is not later than the collection's
      start, and not later than the start of any session that was live then. The collection reads the mtime and removes the
      entry under the exclusive lock. So no process can touch the entry between these two actions.
   c. A session that was not live at the collection's start began later, because sessions begin under the shared lock and
      collections under the exclusive one. Then S is at or after the collection's start, and so not before the cut-off.
   All these times are mtimes of one file system. The cut-off is a little earlier than necessary, because clocks may be
   coarse. A process without a session touches every entry that it finds. So its parent's session protects the entries.
6. A record is published within a session in which all its blobs were found. If the process has no session, one is opened.
   So the blobs exist when the record becomes visible, and a later collection sees the record before it looks for blobs that
   no record names. A blob that was written outside a session may have been collected. Then BlobMissing is raised, and the
   record is not published.
7. Records are write-once: an existing record stays, unless it is unusable (for example, it lacks a blob) or the caller
   replaces it (`replace`).
   ``locks/records`` is held while a record is looked up and published.
8. When bytes are written that the store already has, the existing entry is not read if its size is right. An entry of
   another size is replaced.
9. If trusted keys are configured, the signatures of a record are checked before its document is read. An untrusted record
   stays, because other machines may trust it. Then this machine stores its own record under a second key, if a trusted
   key has signed the record. The second key is computed from the record's domain (its origin, such as ``ci``):
   core/recipes/trust.py, rules 3 and 4.
10. A command that only reads (`begin_read_only`) touches no entry and holds no lock. So its answer may be outdated at once.
    The first call that writes ends this mode.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature, Trust, TrustAll, domain_key, lookup_keys
from trtbuild.errors import EntryCorrupt, RecordUntrusted, StoreUnavailable
from trtbuild.store.local import locks
from trtbuild.store.local.blobs import LocalBlobs
from trtbuild.store.local.writing import put_small
from trtbuild.store.trust import action_result
from trtbuild.store.trust.action_result import ActionResult, record_document

_log = logging.getLogger("trtbuild.store")

T = TypeVar("T")


@dataclass(frozen=True)
class _TrustedRecord:
    """A trusted record: the name of its AC entry, the entry, the bytes of its document, and the parsed record."""

    name: str
    entry: ActionResult
    document: bytes
    record: Record


class LocalStore(LocalBlobs):
    """The `Store` of core/recipes/ports.py in the directory `root`, which the first write or session creates.

    Raises StoreUnavailable when `root` is a store of an unknown or unreadable format. Several threads may share an object,
    and several processes may use one directory. When an entry is moved to quarantine, the logger `trtbuild.store` gets a
    warning.
    """

    def __init__(self, root: Path | str, trust: Trust | None = None) -> None:
        super().__init__(root)
        self.trust: Trust = trust or TrustAll()

    def get_record(self, key: str, wanted: Recipe | None = None) -> Record | None:
        """The record of a step's key, or None. A record with the `wanted` recipe is parsed faster.

        Raises EntryCorrupt for a corrupt record, which is moved to quarantine; RecordUntrusted; StoreUnavailable.
        """
        if self.trust.checks_signatures:
            trusted = self._trusted_record(key, wanted)
            return None if trusted is None else trusted.record
        with self.entries.lookup_lock():  # once for the entry and its document
            document = self._read_entry(key, record_document)
            found = None if document is None else self.entries.find("cas", document.sha256)
        data = None if document is None or found is None else self._read_document(key, document)
        # Without its document (collected or in quarantine) the record counts as missing, and put_record replaces it.
        return None if data is None else self._parse_record(key, key, data, wanted)

    def entry(self, key: str) -> tuple[ActionResult, bytes] | None:
        """The entry of a trusted record and the verified bytes of its document; None if there is no such record.

        Raises the same errors as `get_record`."""
        trusted = self._trusted_record(key, None)
        return None if trusted is None else (trusted.entry, trusted.document)

    def signer(self, key: str) -> str | None:
        """The name and the domain of the key that signed a trusted record; None if no trusted key has signed it.

        Raises the same errors as `get_record`."""
        trusted = self._trusted_record(key, None)
        document = trusted.entry.document if trusted is not None else None
        if trusted is None or document is None:
            return None
        found = self.trust.trusted_signature(key, document, trusted.entry.signatures)
        return None if found is None else f"{found.signer} (domain {found.domain})"

    def _trusted_record(self, key: str, wanted: Recipe | None) -> _TrustedRecord | None:
        """Return the first trusted record among the AC entries named by `lookup_keys`, or None.

        Raises the error of an entry only if no other entry has a trusted record.
        """
        problems: dict[str, EntryCorrupt | RecordUntrusted] = {}
        for name in lookup_keys(self.trust, key):
            try:
                trusted = self._read_record_at(name, key, wanted)
            except (EntryCorrupt, RecordUntrusted) as error:
                problems[name] = error
                continue
            if trusted is not None:
                return trusted
        if isinstance(problems.get(key), RecordUntrusted):
            for name, problem in problems.items():
                # The entry of a domain has a more precise error, for example about an expired signing key.
                if name != key and isinstance(problem, RecordUntrusted):
                    raise problem
        if problems:
            raise next(iter(problems.values()))
        return None

    def _read_record_at(self, name: str, key: str, wanted: Recipe | None) -> _TrustedRecord | None:
        """The trusted record of `key` in the AC entry `name`, or None. Raises EntryCorrupt, RecordUntrusted."""
        with self.entries.lookup_lock():
            entry = self._read_entry(name, ActionResult.from_bytes)
            if entry is None:
                return None
            document = entry.document
            if document is None:
                raise self._quarantine_record(name, "it names no record document")
            if self.entries.find("cas", document.sha256) is None:
                return None
        why_not = self.trust.refusal(key, document, entry.signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record in the local cache does not count: {why_not}")
        data = self._read_document(name, document)
        if data is None:
            return None
        return _TrustedRecord(name, entry, data, self._parse_record(name, key, data, wanted))

    def _parse_record(self, name: str, key: str, data: bytes, wanted: Recipe | None) -> Record:
        try:
            record = Record.from_bytes(data, wanted)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._quarantine_record(name, f"its document is not a record: {error}") from error
        if record.recipe.key != key:
            raise self._quarantine_record(name, "it is the record of another key")
        return record

    def has_records(self, keys: Iterable[str]) -> set[str]:
        """Return the `keys` that have an entry. Entries are touched and not read. Raises StoreUnavailable."""
        with self.entries.lookup_lock():
            return {key for key in keys if self._touch_all(lookup_keys(self.trust, key))}

    def _touch_all(self, names: Iterable[str]) -> bool:
        """Touch all entries with these names, because it is not known which is trusted. Returns whether one exists."""
        found = [self.entries.find("ac", name) is not None for name in names]
        return any(found)

    def get_action(self, key: str) -> ActionResult | None:
        """The entry under an AC key, or None. Raises EntryCorrupt for an invalid entry, which is moved to quarantine."""
        return self._read_entry(key, ActionResult.from_bytes)

    def _read_entry(self, key: str, parse: Callable[[bytes], T]) -> T | None:
        with self.entries.lookup_lock():
            found = self.entries.find("ac", key)
        data = None if found is None else self.entries.read("ac", key)
        if data is None:
            return None
        try:
            return parse(data)
        except ValueError as error:
            raise self._quarantine_record(key, str(error)) from error

    def _read_document(self, key: str, document: Output) -> bytes | None:
        data = self.entries.read("cas", document.sha256)
        if data is None:
            return None
        if len(data) != document.size or hashlib.sha256(data).hexdigest() != document.sha256:
            self.entries.quarantine("cas", document.sha256, f"not the record document that {key} names")
            raise self._quarantine_record(key, "its document does not match its digest")
        return data

    def _quarantine_record(self, key: str, why: str) -> EntryCorrupt:
        """Move the entry of a corrupt record to quarantine. Returns the error to raise."""
        self.entries.quarantine("ac", key, why)
        return EntryCorrupt(f"the record {key} is corrupt ({why}); it was moved to quarantine")

    def put_record(self, record: Record, *, replace: bool = False) -> Record:
        """Publish a record of this machine. Its blobs must be in this store. The record is signed if this machine signs.

        Returns the record that is in the store afterwards, which may be another process's, because records are write-once.
        With `replace`, an existing record is replaced, and `record` is returned. If the store has an untrusted record of
        this key, and no trusted key has signed `record`, then `record` is returned without being stored.

        Raises BlobMissing when an output is not in the store, StoreUnavailable.
        """
        document = record.to_bytes()
        signatures = self.trust.sign(record.recipe.key, _file_of(document))
        return self._publish(record, document, signatures, replace=replace)

    def put_record_copy(
        self, record: Record, document: bytes, signatures: Sequence[Signature] = (), *, replace: bool = False
    ) -> Record:
        """Publish a record from another store, with its document and signatures. Its blobs must be in this store. Returns
        the same as `put_record`.

        Raises RecordUntrusted, BlobMissing, StoreUnavailable.
        """
        why_not = self.trust.refusal(record.recipe.key, _file_of(document), signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record {record.recipe.key} does not count: {why_not}")
        return self._publish(record, document, signatures, replace=replace)

    def _publish(self, record: Record, document: bytes, signatures: Sequence[Signature], *, replace: bool) -> Record:
        key = record.recipe.key
        self.entries.is_read_only = False
        self.entries.prepare()
        own_session = nullcontext() if self.entries.sessions.active else self.session()
        with own_session, locks.hold_records_lock(self.entries.layout):
            winner = None if replace else self._usable_record(key, record)
            if winner is not None:
                return winner
            blobs = {output.sha256: self.files_of(output.sha256) for output in record.outputs.values()}
            # The document is not split, even if it is large, because an entry names one file as its document.
            written = put_small(self.entries, memoryview(document))
            entry = action_result.record_entry(written, blobs, signatures)
            name = self._entry_name_for(key, written, signatures)
            if name is not None:
                self.entries.write("ac", name, entry.to_bytes())
                self._remove_earlier(key, name)
        return record

    def _remove_earlier(self, key: str, new_name: str) -> None:
        """Remove the trusted entries of a record that lookups find before the new entry `new_name` (rule 9).

        They were replaced, or they lack a blob. Otherwise no lookup would find the new entry, and every build would make
        the record again."""
        for name in itertools.takewhile(lambda name: name != new_name, lookup_keys(self.trust, key)):
            with suppress(EntryCorrupt, RecordUntrusted):
                if self._read_record_at(name, key, None) is not None:
                    self.entries.remove("ac", name)

    def _usable_record(self, key: str, new_record: Record) -> Record | None:
        """The existing record, if it is trusted, has the same recipe as `new_record`, and has all its blobs."""
        try:
            trusted = self._trusted_record(key, None)
        except (EntryCorrupt, RecordUntrusted):
            return None
        if trusted is None:
            return None
        found = trusted.record
        if not found.recipe.same_as(new_record.recipe):
            self.entries.quarantine("ac", trusted.name, "the recipe differs from one that has the same key")
            return None
        return found if all(self.has(output.sha256) for output in found.outputs.values()) else None

    def _entry_name_for(self, key: str, document: Output, signatures: Sequence[Signature]) -> str | None:
        """The name of the AC entry for a new record: usually `key`, the key of its step.

        If an untrusted record already has this name, there are two cases. A new record that a trusted key has signed gets
        the key of its domain (rule 9). For other records the result is None: they are not stored."""
        if not self.trust.checks_signatures:
            return key
        try:
            self._read_record_at(key, key, None)
        except RecordUntrusted:
            trusted_signature = self.trust.trusted_signature(key, document, signatures)
            return None if trusted_signature is None else domain_key(trusted_signature.domain, key)
        except EntryCorrupt:
            pass
        return key

    @contextmanager
    def session(self) -> Iterator[None]:
        """Protect all that is read or written within the block from collection.

        A store that cannot be written is read without a session. Raises StoreUnavailable.
        """
        with suppress(StoreUnavailable):
            self.entries.prepare()
        with self.entries.sessions.hold():
            yield

    def begin_read_only(self) -> None:
        """Do not touch or lock entries until the first call that writes (rule 10)."""
        self.entries.is_read_only = True

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Hold a lock on `key`, so that simultaneous builds do not run its step twice. The lock is also released if
        the process dies. Raises StoreUnavailable.
        """
        self.entries.prepare()
        with locks.hold_key_lock(self.entries.layout, key):
            yield


def _file_of(document: bytes) -> Output:
    return Output(hashlib.sha256(document).hexdigest(), len(document))
