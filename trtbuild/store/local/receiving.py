"""Receiving CAS files from another store into the local store.

Rules
1. The caller of `put` has compared the bytes with the name. Files are verified again when they are read (local.py, rule 3).
2. Files are published in groups (publication.py, rule 3). When the `receiving` block ends, all files are in the store and
   durable, so an entry that names them may be published.
3. When the block ends with an error, the files that were put before the error are published. The next attempt continues
   from there.
4. The block is within a session, which protects the files that were found or put (local.py, rule 5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from trtbuild.core.recipes.record import Output
from trtbuild.errors import StoreUnavailable
from trtbuild.store.local.entries import Entries
from trtbuild.store.local.publication import Publication


class Receipt:
    """Writes the received CAS files. Several threads may call its methods."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._publication = Publication(entries.layout)

    def has(self, part: Output) -> bool:
        """Whether the store has the CAS file, with the right size. Marks the file as used. Raises StoreUnavailable."""
        return bool(self.found((part,)))

    def found(self, parts: Iterable[Output]) -> set[Output]:
        """Return the `parts` for which `has` is true."""
        with self._entries.lock.shared():
            present = {part for part in dict.fromkeys(parts) if self._entries.find("cas", part.sha256) == part.size}
        for part in present:  # the file's writer may not have synced the directory yet
            self._publication.also(os.path.dirname(self._entries.layout.entry("cas", part.sha256)))
        return present

    def put(self, part: Output, data: bytes | memoryview) -> None:
        """Write a CAS file. The caller has compared the bytes with its name. Raises StoreUnavailable."""
        self._entries.prepare()
        self._publication.gather(self._entries.layout.entry("cas", part.sha256), data)

    def settle(self) -> None:
        """Publish all files, durably. Raises StoreUnavailable."""
        self._publication.settle()


@contextmanager
def receiving(entries: Entries) -> Iterator[Receipt]:
    """Yield a `Receipt`, which is settled when the block ends (rules 2 and 3)."""
    receipt = Receipt(entries)
    try:
        yield receipt
    except BaseException:
        with suppress(StoreUnavailable):  # the first error is raised, not this one
            receipt.settle()
        raise
    receipt.settle()
