"""CAS files that come from another store: looked for here, and published some at a time.

Rules
1. What is put was compared with its name by whoever puts it. What is read is verified all the same (local.py, rule 3).
2. A file that was put appears with others (publication.py, rule 3). When the block ends all of them are there and
   durable, so what refers to them may be published.
3. When the block is left by an error, what came before it is published: the next try goes on from there.
4. The block is within a session: what was found or put stays until that ends (local.py, rule 5).
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
    """What is coming in. Its methods may be called by several threads."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._publication = Publication(entries.layout)

    def has(self, part: Output) -> bool:
        """Whether a CAS file is there, in its size; it counts as used. Raises StoreUnavailable."""
        return bool(self.found((part,)))

    def found(self, parts: Iterable[Output]) -> set[Output]:
        """Those of `parts` that are there: `has` for many at once."""
        with self._entries.lock.shared():
            there = {part for part in dict.fromkeys(parts) if self._entries.find("cas", part.sha256) == part.size}
        for part in there:  # whoever put them may not have synced the directory yet
            self._publication.also(os.path.dirname(self._entries.layout.entry("cas", part.sha256)))
        return there

    def put(self, part: Output, data: bytes | memoryview) -> None:
        """Keep the bytes of a CAS file, which were compared with its name. Raises StoreUnavailable."""
        self._entries.prepare()
        self._publication.gather(self._entries.layout.entry("cas", part.sha256), data)

    def settle(self) -> None:
        """Have all of them there, and durable. Raises StoreUnavailable."""
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
