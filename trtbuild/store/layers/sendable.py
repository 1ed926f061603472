"""Records of the local store in the form in which they are sent: with their signatures, each file verified."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Trust
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.files import Read
from trtbuild.store.remote.records import Found


def found_locally(local: LocalStore, key: str) -> Found | None:
    """A record of the local store with its document, signatures and parts, or None. Raises StoreError."""
    entry = local.entry(key)
    if entry is None:
        return None
    action, document = entry
    record = Record.from_bytes(document)
    named = action.blobs()
    parts = {output.sha256: named[output.sha256] for output in record.outputs.values()}
    return Found(record, document, action.signatures, parts)


def held(store: LocalStore, key: str) -> Found | None:
    """The trusted record with its document, signatures and parts. None if the record, or one of its blobs, is missing.

    Raises StoreUnavailable.
    """
    try:
        found = found_locally(store, key)
    except (EntryCorrupt, RecordUntrusted, KeyError, ValueError):
        return None
    return found if found is not None and all(store.has(sha256) for sha256 in found.parts) else None


def for_others(found: Found, trust: Trust) -> Found | None:
    """The record with only the signatures that may leave this machine. None if the record must not be sent
    (core/recipes/trust.py, rule 5)."""
    signatures = trust.sendable_signatures(found.signatures)
    return None if trust.enforced and not signatures else replace(found, signatures=signatures)


def reading(store: LocalStore) -> Read:
    """A function that reads CAS files of a local store, and compares each with its name.

    It raises BlobMissing, EntryCorrupt for a damaged file (which it moves to quarantine), StoreUnavailable.
    """

    def read(file: Output) -> bytes:
        data = store.entries.read("cas", file.sha256)
        if data is None:
            raise BlobMissing(f"{file.sha256} is not in the store {store.root}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            store.entries.quarantine("cas", file.sha256, "its bytes have another SHA-256")
            raise EntryCorrupt(f"{file.sha256} was damaged; it was moved to quarantine")
        return data

    return read
