"""Reads records of the local store for uploads, chooses the signatures to send, and verifies each file."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Trust
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.files import ReadFile
from trtbuild.store.remote.records import Found


def read_local_record(local: LocalStore, key: str) -> Found | None:
    """A record of the local store with its document, its signatures and the files of its blobs, or None.

    Raises StoreError, and KeyError or ValueError if the entry does not list the files of a blob.
    """
    entry_and_document = local.entry(key)
    if entry_and_document is None:
        return None
    entry, document = entry_and_document
    record = Record.from_bytes(document)
    blobs = entry.blobs()
    files_by_blob = {output.sha256: blobs[output.sha256] for output in record.outputs.values()}
    return Found(record, document, entry.signatures, files_by_blob)


def read_complete_record(store: LocalStore, key: str) -> Found | None:
    """Like `read_local_record`, but returns None for a record that lacks a blob or cannot be used.

    Raises StoreUnavailable.
    """
    try:
        found = read_local_record(store, key)
    except (EntryCorrupt, RecordUntrusted, KeyError, ValueError):
        return None
    return found if found is not None and all(store.has(sha256) for sha256 in found.files_by_blob) else None


def sendable_record(found: Found, trust: Trust) -> Found | None:
    """The record with only those signatures that may leave this machine; None if the record must not be sent
    (core/recipes/trust.py, rule 5)."""
    signatures = trust.sendable_signatures(found.signatures)
    return None if trust.checks_signatures and not signatures else replace(found, signatures=signatures)


def file_reader(store: LocalStore) -> ReadFile:
    """Return a function that reads and verifies CAS files of a local store.

    The function raises BlobMissing, StoreUnavailable, and EntryCorrupt for a damaged file, which it moves to quarantine.
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
