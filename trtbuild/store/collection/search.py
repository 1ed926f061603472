"""Finds the records that have a blob among their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtbuild.core.recipes.record import Record
from trtbuild.errors import EntryCorrupt, RecordUntrusted
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult


def records_with_output(store: LocalStore, sha256: str) -> Iterator[Record]:
    """The trusted records with the blob `sha256` among their outputs, each once. Reads every entry, but marks only the
    entries of the returned records as used.

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
        except (OSError, EntryCorrupt, RecordUntrusted):  # just collected, just moved to quarantine, or untrusted
            continue
        if record is not None and any(output.sha256 == sha256 for output in record.outputs.values()):
            yield record


def _key_of_record(store: LocalStore, data: bytes) -> str | None:
    """The key of the record in the entry `data`, or None. The key is read from the record's document. The entry's name is
    not always this key: a domain entry has another name."""
    try:
        document = ActionResult.from_bytes(data).document
        text = None if document is None else store.entries.read("cas", document.sha256)
        return None if text is None else Record.from_bytes(text).recipe.key
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
