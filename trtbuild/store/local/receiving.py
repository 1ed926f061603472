"""Receives CAS files from another store into the local store.

Rules
1. The caller of `put` has compared the bytes with the name. Files are verified again when they are read (local.py, rule 3).
2. Files are published in batches (publication.py, rule 3). When the block of `open_receiver` ends, all files are durable,
   so an entry that names them may be published.
3. If the block ends with an error, the files that were received before the error are published, too. So the next attempt
   does not fetch them again.
4. The caller holds a session, which protects the files that were found or received (local.py, rule 5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from trtbuild.core.recipes.record import Output
from trtbuild.errors import StoreUnavailable
from trtbuild.store.local.entries import Entries
from trtbuild.store.local.publication import Publication


class FileReceiver:
    """Writes the received CAS files. Several threads may call its methods."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._publication = Publication(entries.layout)

    def has(self, file: Output) -> bool:
        """Whether the store has the CAS file, with the right size. Touches the file. Raises StoreUnavailable."""
        return bool(self.present_files((file,)))

    def present_files(self, files: Iterable[Output]) -> set[Output]:
        """Return those of `files` for which `has` is true."""
        with self._entries.lock.shared():
            present = {file for file in dict.fromkeys(files) if self._entries.find("cas", file.sha256) == file.size}
        for file in present:  # because the file's writer may not have synced the directory yet
            self._publication.add_folder(os.path.dirname(self._entries.layout.entry_path("cas", file.sha256)))
        return present

    def put(self, file: Output, data: bytes | memoryview) -> None:
        """Write a CAS file. Raises StoreUnavailable."""
        self._entries.prepare()
        self._publication.write_in_batch(self._entries.layout.entry_path("cas", file.sha256), data)

    def make_durable(self) -> None:
        """Publish all files, durably. Raises StoreUnavailable."""
        self._publication.make_durable()


@contextmanager
def open_receiver(entries: Entries) -> Iterator[FileReceiver]:
    """Yield a `FileReceiver`, in a block (rules 2 and 3). Raises StoreUnavailable."""
    receiver = FileReceiver(entries)
    try:
        yield receiver
    except BaseException:
        with suppress(StoreUnavailable):  # because the first error is raised
            receiver.make_durable()
        raise
    receiver.make_durable()
