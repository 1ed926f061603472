"""Finding records by what they left: the way back from bytes to the recipe that made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtbuild.core.record import Record
from trtbuild.errors import EntryCorrupt
from trtbuild.store.local import LocalStore


def records_of(store: LocalStore, sha256: str) -> Iterator[Record]:
    """The records that have the blob `sha256` among their outputs. Every entry is read, none of the others is touched.

    Raises StoreUnavailable.
    """
    layout, wanted = store.entries.layout, sha256.encode()
    for key, _ in layout.entries("ac"):
        try:
            if wanted not in Path(layout.entry("ac", key)).read_bytes():
                continue
            record = store.get_record(key)
        except (OSError, EntryCorrupt):  # collected meanwhile, or put aside now
            continue
        if record is not None and any(output.sha256 == sha256 for output in record.outputs.values()):
            yield record
