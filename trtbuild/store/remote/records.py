"""Finds, verifies and publishes the records of a remote. docs/store-format.md describes the format.

A record has an entry: a file in ``ac/`` that is named by the record's key. The entry lists the record's document and the
files of its blobs, which are in ``cas/`` (files.py).

Rules
1. Everything is verified. The document of a record must have the digest that its entry names, and its recipe must have the
   key under which the record was found. A difference raises RemoteLied. If trusted keys are configured, a signature is
   verified before the document is parsed. Without a trusted signature, RecordUntrusted is raised.
2. An entry and a document each have at most `MAX_ENTRY_SIZE` bytes. The sizes of a blob's files add up to the size that
   the record names.
3. CAS files are sent first, then the record's document, then the entry. If sending the files took long, they are looked up
   again before the entry is written (files.py, rule 3).
4. The bytes of small files are also in the entry (action_result.py, rule 6). So a small record needs only one request. The
   lookup of a trace reads several small records, one after another (core/recipes/chain.py).
5. An existing entry that this machine can use stays, except under rule 7. So does an entry that this machine does not
   trust, because other machines may trust it. An unusable entry is replaced, if the remote allows it. It is unusable if a
   file is missing, or if this machine could not read its results (`refused`). If an untrusted or unusable entry stays, a
   record with a trusted signature gets a second entry. The key of the second entry is computed from the record's key and
   domain (core/recipes/trust.py, rules 3 and 4).
6. Several machines may write an entry at the same moment. Some remotes do not decide which write is the first
   (`Transport.decides_races`). There, the entry of the last writer stays. So each machine looks up the entry again
   `SETTLE_S` after its write (`current_record`). A write that takes longer than `SETTLE_S` may replace an entry that
   another machine has found in this lookup. Then the other machine's package names an engine that the remote does not have.
7. A package replaces an existing package with other contents, if the remote allows it. If two builds run at once, the
   remote may have the engine of one build and the package of the other. `--frozen` rejects a package that does not match
   its engines. A pointer record also replaces an existing one. Its only output is a copy of another record, such as a
   trace that a machine without PyTorch looks up (core/recipes/lookup_recipes.py). The existing pointer may lead to a trace
   of another version of PyTorch, or to one whose later steps are no longer in the remote. With `keeps_pointers`, existing
   pointers stay, because the results of the sender are incomplete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trtbuild.core.recipes.lookup_recipes import POINTER_STAGES
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature, Trust, domain_key
from trtbuild.errors import RecordUntrusted, RemoteLied, RemoteRefused
from trtbuild.store.remote.files import MAX_FILE_SIZE, PUBLISHING_LIMIT_S, ReadFile, RemoteFiles
from trtbuild.store.trust import action_result
from trtbuild.store.trust.action_result import ActionResult

#: The maximum size of an entry in bytes. The largest part of an entry is the list of chunks: 0.7 MB for each GB of the
#: record's blobs. So the limit is enough for blobs of 80 GB.
MAX_ENTRY_SIZE = 64 << 20

#: For this many seconds after a write, another machine's simultaneous write may still replace the entry (rule 6).
SETTLE_S = 0.25

# A document of at most this many bytes is also in the entry (rule 4).
_INLINE_DOCUMENT_SIZE = 48 << 10
#: A file of a blob with at most this many bytes is also in the entry.
INLINE_FILE_SIZE = 4 << 10
# The limit, in bytes, for all such files of blobs in one entry.
_INLINE_TOTAL_SIZE = 64 << 10


@dataclass(frozen=True)
class Found:
    """A record as a store has it: with its document's bytes, its signatures, and the CAS files of its blobs."""

    record: Record
    document: bytes
    signatures: tuple[Signature, ...]
    #: SHA-256 of a blob → its CAS files: the blob itself, or its chunks in order.
    files_by_blob: Mapping[str, tuple[Output, ...]]

    def entry(self, contents: Mapping[str, bytes]) -> ActionResult:
        """Make the record's entry. `contents` maps the SHA-256 of small files to their bytes (rule 4)."""
        entry = action_result.record_entry(document_file(self.document), self.files_by_blob, self.signatures)
        return dataclasses.replace(entry, contents=contents)


@dataclass(frozen=True)
class _Lookup:
    """The result of a lookup: a record, or None, and the `name` of its entry.

    `keeps_first` is whether the entry under the record's key is untrusted, so that it must stay (rule 5)."""

    found: Found | None
    name: str
    keeps_first: bool = False


class _DocumentMissing(Exception):
    """The document that an entry names is missing, because a collection removed it."""


def document_file(text: bytes) -> Output:
    """The digest and size of a record's document."""
    return Output(hashlib.sha256(text).hexdigest(), len(text))


class RemoteRecords:
    """The records of a remote."""

    def __init__(self, files: RemoteFiles, trust: Trust) -> None:
        self._files = files
        self._transport = files.transport
        self._trust = trust

    def find(self, key: str, wanted: Recipe | None = None) -> Found | None:
        """The trusted record under a key, or None. Reading is faster if the record's recipe is `wanted`. Raises
        RecordUntrusted, RemoteFault."""
        return self._look_up(key, wanted).found

    def _look_up(self, key: str, wanted: Recipe | None) -> _Lookup:
        """Find the trusted record under a key. Raises the same errors as `find`."""
        try:
            return _Lookup(self._read_record_at(key, key, wanted), key)
        except (RecordUntrusted, RemoteLied, _DocumentMissing) as error:
            keeps_first = isinstance(error, RecordUntrusted)
            domain_errors: list[RecordUntrusted] = []
            domains = self._trust.read_domains if self._trust.checks_signatures else ()
            for domain in domains:
                name = domain_key(domain, key)
                try:
                    found = self._read_record_at(name, key, wanted)
                except RecordUntrusted as domain_error:
                    domain_errors.append(domain_error)
                    continue
                except (RemoteLied, _DocumentMissing):
                    continue
                if found is not None:
                    return _Lookup(found, name, keeps_first=keeps_first)
            if isinstance(error, _DocumentMissing):
                return _Lookup(None, key)
            # The error of a domain entry is more precise. For example, it names an expired signing key.
            if domain_errors and isinstance(error, RecordUntrusted):
                raise domain_errors[0] from error
            raise error

    def _read_record_at(self, name: str, key: str, wanted: Recipe | None) -> Found | None:
        data = self._transport.get("ac", name, MAX_ENTRY_SIZE, timed=True)
        if data is None:
            return None
        try:
            entry = ActionResult.from_bytes(data)
        except ValueError as error:
            raise self._files.report_lie(
                f"ac/{name} is not an entry ({error}); it begins with {data[:24]!r}"
            ) from error
        document = entry.document
        if document is None or document.size > MAX_ENTRY_SIZE:
            raise self._files.report_lie(f"ac/{name} names no record")
        for _, file in entry.files:
            if file.sha256 in entry.contents:
                self._files.add_contents(file, entry.contents[file.sha256])
        text = self._files.get(document, timed=True)
        if text is None:
            raise _DocumentMissing
        why_not = self._trust.refusal(key, document, entry.signatures)
        if why_not is not None:
            raise RecordUntrusted(f"the record in {self._files.name} does not count: {why_not}")
        try:
            record = Record.from_bytes(text, wanted)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._files.report_lie(f"ac/{name} does not lead to a record ({error})") from error
        if record.recipe.key != key:
            raise self._files.report_lie(f"ac/{name} is the record of another key")
        return Found(record, text, entry.signatures, self._files_of_blobs(name, record, entry))

    def _files_of_blobs(self, name: str, record: Record, entry: ActionResult) -> dict[str, tuple[Output, ...]]:
        """SHA-256 of each blob of the record → its CAS files. Raises RemoteLied if the entry does not list them."""
        try:
            blobs = entry.blobs()
        except ValueError as error:
            raise self._files.report_lie(f"ac/{name}: {error}") from error
        files_by_blob = {}
        for output in record.outputs.values():
            files = blobs.get(output.sha256, ())
            # A blob with one file has no chunks, so this file must be the blob itself.
            can_be_blob = len(files) != 1 or files[0].sha256 == output.sha256
            if not files or not can_be_blob or sum(file.size for file in files) != output.size:
                raise self._files.report_lie(f"ac/{name} does not list the files of blob {output.sha256}")
            if any(file.size > MAX_FILE_SIZE for file in files):
                raise self._files.report_lie(f"ac/{name} names a file of more than {MAX_FILE_SIZE >> 20} MiB")
            files_by_blob[output.sha256] = files
        return files_by_blob

    def publish(
        self, found: Found, read: ReadFile, *, keeps_pointers: bool = False, refused: Collection[str] = ()
    ) -> Found:
        """Publish a record after its CAS files. `read` returns the bytes of a file. Returns the result of `write_entry`.
        With `keeps_pointers`, an existing pointer record is not replaced (rule 7).

        Raises RemoteFault (RemoteRefused if the key has an unusable entry that cannot be replaced), and the errors of
        `read`.
        """
        started = time.monotonic()
        files = [file for blob_files in found.files_by_blob.values() for file in blob_files]
        self._files.send(files, read)
        self._files.send([document_file(found.document)], lambda file: found.document)
        if time.monotonic() - started > PUBLISHING_LIMIT_S / 2:
            self._files.send(files, read, recheck=True)
        return self.write_entry(found, read, keeps_pointers=keeps_pointers, refused=refused)

    def write_entry(
        self,
        found: Found,
        read: ReadFile,
        *,
        replace: bool = False,
        keeps_pointers: bool = False,
        refused: Collection[str] = (),
    ) -> Found:
        """Write the entry of a record whose files are in the remote. With `replace`, an existing entry is replaced, if the
        remote allows it. With `keeps_pointers`, an existing pointer record is not replaced (rule 7). `refused` has the
        SHA-256 of the documents of records that this machine cannot use, although they have all files.

        If another machine's usable record stays (rules 5 and 7), returns that record, otherwise `found`. If an untrusted
        entry stays, a record without a trusted signature is not written. Raises RemoteFault, and the errors of `read`.
        """
        key, data = found.record.recipe.key, found.entry(_small_files(found, read)).to_bytes()
        if self._transport.put("ac", key, data, once=not replace):
            return found
        # Otherwise the key has an entry already. Find out whether this machine can use it.
        try:
            existing = self._look_up(key, None)
        except RecordUntrusted:  # other machines may trust the existing entry, so it stays (rule 5)
            if self._trust.trusted_signature(key, document_file(found.document), found.signatures) is None:
                return found
            existing = _Lookup(None, key, keeps_first=True)
        except RemoteLied:  # the existing entry is unusable
            existing = _Lookup(None, key)
        other = existing.found
        stage = found.record.recipe.stage
        is_replaceable = stage == "package" or (stage in POINTER_STAGES and not keeps_pointers)  # rule 7
        if other is not None and self._is_usable(other, found, refused):
            is_outdated = is_replaceable and other.record.outputs != found.record.outputs
            if is_outdated and self._replace_outdated(existing, found, data):
                return found
            return other
        # The entry cannot be used: replace it, or write an entry under the domain's key.
        if not existing.keeps_first and self._transport.put("ac", key, data, once=False):
            return found
        published = self._write_domain_entry(found, data, refused, once=not is_replaceable)
        if published is None:
            raise RemoteRefused(
                f"{self._files.name}: the entry of record {key} is unusable, and the remote does not let it be replaced",
                hint="`trtbuild cache gc --dir` on the server removes it, an hour after it was written",
            )
        return published

    def current_record(self, found: Found) -> Found:
        """The record that is in the remote now: `found`, or another machine's simultaneous record (rule 6). Raises
        RemoteFault."""
        try:
            current = self.find(found.record.recipe.key)
        except (RecordUntrusted, RemoteLied):
            return found
        if current is None or current.document == found.document or not self._is_usable(current, found):
            return found
        return current

    def _is_usable(self, other: Found, found: Found, refused: Collection[str] = ()) -> bool:
        """Whether a record in the remote can be used in place of `found`. A record whose document is `refused` cannot."""
        if document_file(other.document).sha256 in refused:
            return False
        files = (file for blob_files in other.files_by_blob.values() for file in blob_files)
        return (
            other.record.recipe.same_as(found.record.recipe)
            and not self._files.damaged_digests.intersection(other.files_by_blob)
            and self._files.has_all(files)
        )

    def _replace_outdated(self, existing: _Lookup, found: Found, data: bytes) -> bool:
        """Replace the entry of an outdated record by the entry `data` of `found`. Returns whether it was replaced."""
        if not existing.keeps_first:
            return self._transport.put("ac", found.record.recipe.key, data, once=False)
        return existing.name == self._domain_name(found) and self._transport.put("ac", existing.name, data, once=False)

    def _domain_name(self, found: Found) -> str | None:
        """The key of the record's domain entry. None if the record has no trusted signature."""
        key = found.record.recipe.key
        trusted_signature = self._trust.trusted_signature(key, document_file(found.document), found.signatures)
        # The domain is the record's, not this machine's, because the record may be from another machine.
        return None if trusted_signature is None else domain_key(trusted_signature.domain, key)

    def _write_domain_entry(self, found: Found, data: bytes, refused: Collection[str], *, once: bool) -> Found | None:
        """Write the entry `data` under the key of the record's domain. Returns the record that is used from now on, or None
        if no trusted record is there.

        With `once`, an existing entry of the domain stays if this machine can use it. Another machine may have written it
        after the lookup (rule 6). A record whose document is `refused` does not stay."""
        key, name = found.record.recipe.key, self._domain_name(found)
        if name is None:
            return None
        if self._transport.put("ac", name, data, once=once):
            return found
        try:
            other = self._read_record_at(name, key, None)
        except (RecordUntrusted, RemoteLied, _DocumentMissing):
            other = None
        if once and other is not None and self._is_usable(other, found, refused):
            return other
        if once and self._transport.put("ac", name, data, once=False):
            return found
        return None if other is None else found


def _small_files(found: Found, read: ReadFile) -> dict[str, bytes]:
    """SHA-256 of each small file of a record (rule 4) → its bytes."""
    document = document_file(found.document)
    small = {document.sha256: found.document} if document.size <= _INLINE_DOCUMENT_SIZE else {}
    remaining_size = _INLINE_TOTAL_SIZE
    for file in {
        file for blob_files in found.files_by_blob.values() for file in blob_files if file.size <= INLINE_FILE_SIZE
    }:
        remaining_size -= file.size
        if remaining_size >= 0:
            small[file.sha256] = bytes(read(file))
    return small
