"""Finds records of a local store without their keys: by an output, or by their stages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from trtbuild.core.recipes.record import Record
from trtbuild.errors import EntryCorrupt, RecordUntrusted
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult

#: The number of bytes at the end of a record's document in which the record's stage is found.
_END_BYTES = 120


def records_with_output(store: LocalStore, sha256: str) -> Iterator[Record]:
    """The trusted records with the blob `sha256` among their outputs, each once. Reads every entry, but marks only
    those that name `sha256` as used.

    Raises StoreUnavailable.
    """
    layout, sha256_bytes, seen_keys = store.entries.layout, sha256.encode(), set()
    for name, _ in layout.entries("ac"):
        try:
            data = Path(layout.entry_path("ac", name)).read_bytes()
            key = _key_of_record(store, data) if sha256_bytes in data else None
            if key is None or key in seen_keys:
                continue
            seen_keys.add(key)
            record = store.get_record(key)
        except (OSError, EntryCorrupt, RecordUntrusted):  # just collected, damaged, or untrusted
            continue
        if record is not None and any(output.sha256 == sha256 for output in record.outputs.values()):
            yield record


def newest_records(store: LocalStore, stages: Collection[str], most_entries: int) -> Iterator[Record]:
    """The trusted records of these stages, the most recently used first. Reads at most `most_entries` entries, and leaves
    out those that cannot be read.

    Raises StoreUnavailable.
    """
    layout, marks = store.entries.layout, [f'"stage":"{stage}","version":'.encode() for stage in stages]
    entries = sorted(layout.entries("ac"), key=lambda entry: -entry[1].st_mtime_ns)
    for name, _ in entries[:most_entries]:
        try:
            document = _document(store, Path(layout.entry_path("ac", name)).read_bytes())
            end = b"" if document is None else document[-_END_BYTES:]
            if document is None or not any(mark in end for mark in marks):
                continue
            record = store.get_record(Record.from_bytes(document).recipe.key)
        # Just collected, damaged, nested too deeply, or untrusted.
        except (OSError, ValueError, RecursionError, EntryCorrupt, RecordUntrusted):
            continue
        if record is not None and record.recipe.stage in stages:
            yield record


def _document(store: LocalStore, data: bytes) -> bytes | None:
    """The unverified document that the entry `data` names, or None."""
    document = ActionResult.from_bytes(data).document
    return None if document is None else store.entries.read("cas", document.sha256)


def _key_of_record(store: LocalStore, data: bytes) -> str | None:
    """The key of the record in the entry `data`, or None. It is read from the record's document, because the name of a
    domain's entry is another key (core/recipes/trust.py, rule 4)."""
    try:
        text = _document(store, data)
        return None if text is None else Record.from_bytes(text).recipe.key
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
