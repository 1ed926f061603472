"""Collection (garbage collection) removes old entries, so that a local store stays within limits.

Collection is safe while builds run: store/local/local.py explains why (rules 4 to 6).

Rules
1. Only entries with an mtime before the cut-off are removed. All others stay, even if the store exceeds its limits. The
   cut-off is `SLACK_S` before the start of this collection, or before the start of the oldest running session if that is
   earlier. No session relies on an entry with an mtime before the cut-off.
2. Each removal reads the mtime again, under the exclusive store-wide lock. The lock is held for short batches.
3. Records are removed first (retention.py decides which records). Then a chunk list is removed if no remaining record names
   its blob. Then a CAS file is removed if no remaining record or list names it. A record that was used in the meantime
   remains, and so do its blobs.
4. A blob that no record names is removed even if the store is within its limits, because a build finds a blob only
   through a record. Rule 1 applies to the blob, too.
"""

# Paths are strings here, as in the rest of the store.
# ruff: noqa: PTH108, PTH116
from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable

from trtbuild.atomic import sync_folder
from trtbuild.store.collection.retention import CollectReport, Entry, Scan, Size, records_to_remove, size_of
from trtbuild.store.local.layout import Kind, Layout, unavailable_error
from trtbuild.store.local.leftovers import remove_leftovers, session_starts
from trtbuild.store.local.local import LocalStore

#: The coarsest resolution of time stamps in common file systems (FAT), in seconds.
SLACK_S = 2.0

# Errors of a machine that is short of something, and not of the file that was opened.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

# The largest number of entries that are removed while the lock is held once (rule 2).
_BATCH_SIZE = 64


def collect(
    store: LocalStore,
    *,
    max_size: int | None = None,
    max_age_s: float | None = None,
    pinned: Iterable[str] = (),
    slack_s: float = SLACK_S,
    quarantine_age_s: float = 7 * 86400.0,
    dry_run: bool = False,
) -> CollectReport:
    """Remove entries until `store` has at most `max_size` allocated bytes, and the last use of each record was at most
    `max_age_s` seconds ago.

    Records whose keys are `pinned` stay, with their blobs. `slack_s` replaces `SLACK_S` (rule 1). Entries in quarantine are
    removed after `quarantine_age_s`. With `dry_run` nothing is removed, and the report has the entries that would be
    removed. Raises StoreUnavailable.
    """
    layout = store.entries.layout
    store.entries.prepare()
    start_ns, cutoff_ns = _start_and_cutoff_ns(store, int(slack_s * 1e9))
    scan = _scan_entries(layout)
    reasons: Counter[str] = Counter()
    unneeded_records = records_to_remove(
        scan, start_ns, cutoff_ns, max_size, max_age_s, scan.entry_names_of(pinned), reasons
    )
    removal = _Removal(store, cutoff_ns, dry_run, reasons)

    # Records.
    removed_records = removal.remove_entries("ac", unneeded_records, scan.records.__getitem__)
    remaining = [entry for key, entry in scan.records.items() if key not in removed_records]

    # Chunk lists whose blobs no remaining record names.
    named_blobs = {blob for entry in remaining for blob in entry.blobs}
    unneeded_lists = {key: entry for blob, (key, entry) in scan.lists.items() if blob not in named_blobs}
    removed_lists = removal.remove_entries("ac", unneeded_lists, unneeded_lists.__getitem__)
    removal.sync_folders()  # a loss of power must not leave a record without its blobs

    # CAS files that no remaining record or list names.
    remaining += [entry for key, entry in scan.lists.values() if key not in removed_lists]
    named_files = {file for entry in remaining for file in entry.files}
    removed_files = removal.remove_entries(
        "cas", [name for name in scan.cas if name not in named_files], scan.cas.__getitem__
    )

    kept_sizes = [entry.size for entry in remaining] + [
        entry.size for name, entry in scan.cas.items() if name not in removed_files
    ]
    return CollectReport(
        records_removed=tuple(removed_records),
        lists_removed=len(removed_lists),
        blobs_removed=len(removed_files),
        freed=removal.freed,
        records_kept=len(scan.records) - len(removed_records),
        blobs_kept=len(scan.cas) - len(removed_files),
        kept=sum(kept_sizes, Size()),
        kept_because=dict(reasons),
        leftovers_removed=0 if dry_run else remove_leftovers(layout, start_ns, quarantine_age_s),
    )


def _start_and_cutoff_ns(store: LocalStore, slack_ns: int) -> tuple[int, int]:
    """The start of this collection and the cut-off (rule 1), in ns of the file system's clock."""
    layout = store.entries.layout
    time_stamp_path = layout.fresh_path()
    with store.entries.lock.exclusive():
        try:
            descriptor = os.open(time_stamp_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC)
            start_ns = os.fstat(descriptor).st_mtime_ns
            os.close(descriptor)
            os.unlink(time_stamp_path)
        except OSError as error:
            raise unavailable_error(error, layout.root) from error
        starts = list(session_starts(layout))
        if any(session_start_ns > start_ns for session_start_ns in starts):
            # The clock was set back after a session began, so no mtime is reliable. This cut-off removes nothing.
            return start_ns, -(1 << 62)
        return start_ns, min([start_ns, *starts]) - slack_ns


def _scan_entries(layout: Layout) -> Scan:
    scan = Scan()
    for key, stat in layout.entries("ac"):
        data = None
        try:
            with open(layout.entry_path("ac", key), "rb") as file:
                data = file.read()
        except OSError as error:
            if error.errno in _SHORTAGES:  # the entry is fine, and the collection would remove the files that it names
                raise unavailable_error(error, layout.root) from error
            # An entry that cannot be read is added without data. Then it counts as a record without files.
        scan.add(key, stat.st_mtime_ns, size_of(stat), data)
    for name, stat in layout.entries("cas"):
        scan.cas[name] = Entry(stat.st_mtime_ns, size_of(stat))
    return scan


class _Removal:
    """Removes entries in batches (rule 2), and counts them."""

    def __init__(self, store: LocalStore, cutoff_ns: int, dry_run: bool, reasons: Counter[str]) -> None:
        self._store = store
        self._cutoff_ns = cutoff_ns
        self._dry_run = dry_run
        self._reasons = reasons
        self._folders: set[str] = set()
        self.freed = Size()

    def remove_entries(self, kind: Kind, names: Iterable[str], entry_of: Callable[[str], Entry]) -> dict[str, None]:
        """Remove the entries that are still older than the cut-off. Returns the removed names, in order."""
        removed_names: dict[str, None] = {}
        all_names = list(names)
        for start in range(0, len(all_names), _BATCH_SIZE):
            with contextlib.nullcontext() if self._dry_run else self._store.entries.lock.exclusive():
                for name in all_names[start : start + _BATCH_SIZE]:
                    if self._remove_file(self._store.entries.layout.entry_path(kind, name)):
                        removed_names[name] = None
                        self.freed += entry_of(name).size
                    else:
                        self._reasons["in use"] += 1
        return removed_names

    def _remove_file(self, path: str) -> bool:
        """Remove a file, except in a dry run. Returns False, and keeps the file, if its mtime is at or after the
        cut-off."""
        try:
            if os.stat(path).st_mtime_ns >= self._cutoff_ns:
                return False
            if not self._dry_run:
                os.unlink(path)
                self._folders.add(os.path.dirname(path))
        except FileNotFoundError:
            pass  # another collection was faster
        except OSError as error:
            raise unavailable_error(error, self._store.entries.layout.root) from error
        return True

    def sync_folders(self) -> None:
        """Make the earlier removals durable."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                sync_folder(folder)
        self._folders.clear()
