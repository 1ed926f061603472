"""The records of a remote: found, judged, published. The form is that of cache/README.md.

Rules
1. Nothing that comes is believed. A record's document is compared with the digest that its entry gives, its recipe with the
   key; and where keys are trusted, a signature holds before the document is even parsed. What does not fit is RemoteLied.
2. What is announced bounds what is read: an entry `MAX_ENTRY`, a document too. The parts of a blob have, together, the
   size that the record gives the blob.
3. CAS files first, the record's document after them, the entry last. If that took long, the files are looked for again
   before the entry is written (files.py, rule 3).
4. Small files are in the entry itself too (action_result.py, rule 6), so a link of a trace's chain is one request.
5. Entries are write-once. One that nobody can use is replaced, where the place allows it. One that others may trust and
   this machine does not stays: its own goes under its domain's key (core/recipes/trust.py, rule 4).
6. Where first writers at the same moment are not told apart (`Transport.decides`), the last one's entry stays, and a little
   later all of them find it (`now_there`). A request is one packet mostly, so `SETTLE_S` is long.
7. A package is replaced, where the place allows it, by one that was put together later from other engines. Of two builds
   at once one may be first with an engine and the other with the package: it would not fit, and `--frozen` refuse it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature, Trust, domain_key
from trtbuild.errors import RecordUntrusted, RemoteLied, RemoteRefused
from trtbuild.store.remote.files import MAX_FILE, TRUSTED_S, Read, RemoteFiles
from trtbuild.store.trust import action_result
from trtbuild.store.trust.action_result import ActionResult

#: Bytes of an entry. Its list of chunks is the large part: this is one of 20 GB.
MAX_ENTRY = 16 << 20

#: Seconds after a write within which another first writer's may still come to stay (rule 6).
SETTLE_S = 0.25

# Files of at most so many bytes are in the entry too: the document, and others. Together at most so many.
_INLINE_DOCUMENT = 48 << 10
#: See above: the most of one file.
INLINE = 4 << 10
_INLINE_TOTAL = 64 << 10


@dataclass(frozen=True)
class Found:
    """A record as it lies in a remote: with its document's bytes, its signatures, and the CAS files of each blob."""

    record: Record
    document: bytes
    signatures: tuple[Signature, ...]
    parts: Mapping[str, tuple[Output, ...]]

    def entry(self, contents: Mapping[str, bytes]) -> ActionResult:
        """The AC entry that says all this, with the `contents` of some files in it."""
        entry = action_result.record_entry(document_of(self.document), self.parts, self.signatures)
        return replace(entry, contents=contents)


class _Collected(Exception):
    """An entry is there, and its document is not."""


def document_of(text: bytes) -> Output:
    """The CAS file that a record document is."""
    return Output(hashlib.sha256(text).hexdigest(), len(text))


class RemoteRecords:
    """Records over the files of a remote."""

    def __init__(self, files: RemoteFiles, trust: Trust) -> None:
        self._files = files
        self._transport = files.transport
        self._trust = trust

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The record under a key, if it is there and counts. Raises RecordUntrusted, RemoteFault."""
        try:
            return self._at(key, key, wanted)
        except (RecordUntrusted, RemoteLied, _Collected) as error:
            told: list[RecordUntrusted] = []
            domains = self._trust.read_domains if self._trust.enforced else ()
            for domain in domains:
                try:
                    found = self._at(domain_key(domain, key), key, wanted)
                except RecordUntrusted as nearer:
                    told.append(nearer)
                    continue
                except (RemoteLied, _Collected):
                    continue
                if found is not None:
                    return found
            if isinstance(error, _Collected):
                return None
            if told and isinstance(error, RecordUntrusted):  # that the key expired, and not that another's is unsigned
                raise told[0] from error
            raise error

    def _at(self, place: str, key: str, wanted: Recipe | None) -> Found | None:
        data = self._transport.get("ac", place, MAX_ENTRY, timed=True)
        if data is None:
            return None
        try:
            entry = ActionResult.from_bytes(data)
        except ValueError as error:
            raise self._files.lie(f"ac/{place} is no entry ({error}); it begins with {data[:24]!r}") from error
        document = entry.document
        if document is None or document.size > MAX_ENTRY:
            raise self._files.lie(f"ac/{place} names no record")
        for file in (file for _, file in entry.files if file.sha256 in entry.contents):
            self._files.know(file, entry.contents[file.sha256])
        text = self._files.get(document, timed=True)
        if text is None:
            raise _Collected
        why_not = self._trust.refusal(key, document, entry.signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record in {self._files.name} does not count: {why_not}")
        try:
            record = Record.from_bytes(text, wanted)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._files.lie(f"ac/{place} leads to no record ({error})") from error
        if record.recipe.key != key:
            raise self._files.lie(f"ac/{place} is the record of another key")
        return Found(record, text, entry.signatures, self._parts(place, record, entry))

    def _parts(self, place: str, record: Record, entry: ActionResult) -> dict[str, tuple[Output, ...]]:
        try:
            named = entry.blobs()
        except ValueError as error:
            raise self._files.lie(f"ac/{place}: {error}") from error
        parts = {}
        for output in record.outputs.values():
            files = named.get(output.sha256, ())
            alone = len(files) != 1 or files[0].sha256 == output.sha256  # else it is one chunk, of another blob
            if not files or not alone or sum(file.size for file in files) != output.size:
                raise self._files.lie(f"ac/{place} does not say what blob {output.sha256} consists of")
            if any(file.size > MAX_FILE for file in files):
                raise self._files.lie(f"ac/{place} names a file of more than {MAX_FILE >> 20} MiB")
            parts[output.sha256] = files
        return parts

    def publish(self, found: Found, read: Read) -> Found:
        """Leave a record there, after its CAS files, which `read` gives. Returns what is there now: another's, if that
        came first and counts for this machine. Raises RemoteFault (RemoteRefused where something useless is in its place
        that stays), and what `read` raises."""
        started = time.monotonic()
        files = [file for parts in found.parts.values() for file in parts]
        self._files.send(files, read)
        self._files.send([document_of(found.document)], lambda file: found.document)
        if time.monotonic() - started > TRUSTED_S / 2:
            self._files.send(files, read, sure=True)
        return self.enter(found, read)

    def enter(self, found: Found, read: Read, *, replace: bool = False) -> Found:
        """Write the entry of a record whose files are there. Returns what is there now. Raises RemoteFault."""
        key, data = found.record.recipe.key, found.entry(_small(found, read)).to_bytes()
        if self._transport.put("ac", key, data, once=not replace):
            return found
        try:
            other = self.find(key)
        except RecordUntrusted:
            if self._trust.voucher(key, document_of(found.document), found.signatures) is None:
                return found
            other, placed = None, False
        except RemoteLied:
            other, placed = None, self._transport.put("ac", key, data, once=False)
        else:
            if other is not None and self._is_usable(other, found):
                if other.record.recipe.stage != "package" or other.record.outputs == found.record.outputs:
                    return other
                return found if self._transport.put("ac", key, data, once=False) else other  # rule 7
            placed = self._transport.put("ac", key, data, once=False)
        if not placed and not self._enter_domain(found, data):
            raise RemoteRefused(
                f"{self._files.name}: what nobody can use stands in the place of record {key}, and must not be replaced",
                hint="`trtbuild cache gc --dir` on the server removes it, an hour after it was written",
            )
        return found

    def now_there(self, found: Found) -> Found:
        """What stands where `found` was entered: itself, or that of another first writer. Raises RemoteFault."""
        try:
            there = self.find(found.record.recipe.key)
        except (RecordUntrusted, RemoteLied):
            return found
        if there is None or there.document == found.document or not self._is_usable(there, found):
            return found
        return there

    def _is_usable(self, other: Found, found: Found) -> bool:
        """Whether a record that is there is as good as `found`."""
        files = (file for parts in other.parts.values() for file in parts)
        return (
            other.record.recipe.same_as(found.record.recipe)
            and not self._files.wrong.intersection(other.parts)
            and self._files.all_there(files)
        )

    def _enter_domain(self, found: Found, data: bytes) -> bool:
        """Write an entry under the key of its domain. Whether there is one there now that counts."""
        key = found.record.recipe.key
        voucher = self._trust.voucher(key, document_of(found.document), found.signatures)
        if voucher is None:
            return False
        # It may be another's record that is passed on, for another domain than this machine's.
        place = domain_key(voucher.domain, key)
        if self._transport.put("ac", place, data, once=False):
            return True
        try:
            return self._at(place, key, None) is not None
        except (RecordUntrusted, RemoteLied, _Collected):
            return False


def _small(found: Found, read: Read) -> dict[str, bytes]:
    """The small files of a record (rule 4)."""
    document = document_of(found.document)
    small = {document.sha256: found.document} if document.size <= _INLINE_DOCUMENT else {}
    room = _INLINE_TOTAL
    for file in {file for parts in found.parts.values() for file in parts if file.size <= INLINE}:
        room -= file.size
        if room >= 0:
            small[file.sha256] = bytes(read(file))
    return small
