"""Receiving CAS files from another store: found here, or published in groups.

Rules
1. The caller of `put` has compared the bytes with the name. Files are verified again when they are read (local.py, rule 3).
2. Files are published in groups (publication.py, rule 3). When the block ends, all of them are there and durable, so an
   entry that names them may be published.
3. When an error leaves the block, the files before it are published: the next attempt continues from there.
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
    """The CAS files that are received. Several threads may call its methods."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._publication = Publication(entries.layout)

    def has(self, part: Output) -> bool:
        """Whether a CAS file of this size is there. Marks it as used. Raises StoreUnavailable."""
        return bool(self.found((part,)))

    def found(self, parts: Iterable[Output]) -> set[Output]:
        """The `parts` that are there: `has` for many at once."""
        with self._entries.lock.shared():
            there = {part for part in dict.fromkeys(parts) if self._entries.find("cas", part.sha256) == part.size}
        for part in there:  # their writer may not have synced the directory yet
            self._publication.also(os.path.dirname(self._entries.layout.entry("cas", part.sha256)))
        return there

    def put(self, part: Output, data: bytes | memoryview) -> None:
        """Write a CAS file. The caller has compared the bytes with its name. Raises StoreUnavailable."""
        self._entries.prepare()
        self._publication.gather(self._entries.layout.entry("cas", part.sha256), data)

    def settle(self) -> None:
        """Publish all files, durably. Raises StoreUnavailable."""
        self._publication.settle()


@contextmanager
def receiving(entries: Entries) -> Iterator[Receipt]:
    """A receipt that is settled when the block ends (rules 2 and 3)."""
    receipt = Receipt(entries)
    try:
        yield receipt
    except BaseException:
        with suppress(StoreUnavailable):  # the error that is raised came first
            receipt.settle()
        raise
    receipt.settle()
