"""Collection: keeps a local store within limits. It is safe while builds run; local.py explains why (rules 4 to 6).

Rules
1. Only entries with an mtime before the cut-off are removed, even if the limits are exceeded. The cut-off is the start of
   this collection or of the oldest live session, whichever is earlier, minus a slack. No session relies on older entries.
2. Each removal reads the mtime again, under the exclusive store-wide lock. The lock is held for short batches.
3. Records are removed first (retention.py decides which records). Then the chunk lists of blobs are removed that no
   remaining record names, then the CAS files that no remaining record or list names. The remaining entries are computed
   again after each step. So a record that was used in the meantime keeps its blobs.
4. Unreferenced blobs before the cut-off are always removed: no build finds a blob without a record.
"""

# Paths are strings here, as in the rest of the store.
# ruff: noqa: PTH108, PTH116
from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable

from trtbuild.atomic import sync_folder
from trtbuild.store.collection.retention import CollectReport, Entry, Scan, Size, doomed_records, size_of
from trtbuild.store.local.layout import Kind, Layout, unavailable
from trtbuild.store.local.leftovers import remove_leftovers, session_starts
from trtbuild.store.local.local import LocalStore

#: The coarsest resolution of time stamps of a file system in use (FAT: 2 s), in seconds.
SLACK_S = 2.0

_BATCH = 64


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
    """Remove entries until `store` has at most `max_size` allocated bytes, and no record was last used over `max_age_s`
    ago.

    Records whose keys are `pinned` stay, with their blobs. With `dry_run` nothing is removed, and the report says what
    would be removed. Raises StoreUnavailable.
    """
    layout = store.entries.layout
    store.entries.prepare()
    begun_ns, cutoff_ns = _begin(store, int(slack_s * 1e9))
    scan = _scan(layout)
    reasons: Counter[str] = Counter()
    doomed = doomed_records(scan, begun_ns, cutoff_ns, max_size, max_age_s, scan.places_of(pinned), reasons)
    removal = _Removal(store, cutoff_ns, dry_run, reasons)

    gone = removal.run("ac", doomed, lambda key: scan.records[key])
    remaining = [entry for key, entry in scan.records.items() if key not in gone]

    named_blobs = {blob for entry in remaining for blob in entry.blobs}
    idle = {key: entry for blob, (key, entry) in scan.lists.items() if blob not in named_blobs}
    gone_lists = removal.run("ac", idle, idle.__getitem__)
    removal.settle()  # a loss of power must not leave a record without its blobs

    remaining += [entry for key, entry in scan.lists.values() if key not in gone_lists]
    named = {file for entry in remaining for file in entry.files}
    gone_cas = removal.run("cas", [name for name in scan.cas if name not in named], scan.cas.__getitem__)

    kept = [entry.size for entry in remaining] + [e.size for name, e in scan.cas.items() if name not in gone_cas]
    return CollectReport(
        records_removed=tuple(gone),
        lists_removed=len(gone_lists),
        blobs_removed=len(gone_cas),
        freed=removal.freed,
        records_kept=len(scan.records) - len(gone),
        blobs_kept=len(scan.cas) - len(gone_cas),
        kept=sum(kept, Size()),
        kept_because=dict(reasons),
        leftovers_removed=0 if dry_run else remove_leftovers(layout, begun_ns, quarantine_age_s),
    )


def _begin(store: LocalStore, slack_ns: int) -> tuple[int, int]:
    """The start and the cut-off, by the file system's clock (local.py, rule 5)."""
    layout = store.entries.layout
    stamp = layout.fresh_name()
    with store.entries.lock.exclusive():
        try:
            descriptor = os.open(stamp, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC)
            begun_ns = os.fstat(descriptor).st_mtime_ns
            os.close(descriptor)
            os.unlink(stamp)
        except OSError as error:
            raise unavailable(error, layout.root) from error
        starts = list(session_starts(layout))
        if any(start_ns > begun_ns for start_ns in starts):
            # The clock was set back after that session began, so no mtime is reliable: nothing is removed.
            return begun_ns, -(1 << 62)
        return begun_ns, min([begun_ns, *starts]) - slack_ns


def _scan(layout: Layout) -> Scan:
    scan = Scan()
    for key, stat in layout.entries("ac"):
        data = None
        # An entry that cannot be read is removed like an old record.
        with contextlib.suppress(OSError), open(layout.entry("ac", key), "rb") as file:
            data = file.read()
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

    def run(self, kind: Kind, names: Iterable[str], entry_of: Callable[[str], Entry]) -> dict[str, None]:
        """Remove the entries that are still older than the cut-off. Returns the removed names, in order."""
        gone: dict[str, None] = {}
        todo = list(names)
        for start in range(0, len(todo), _BATCH):
            with contextlib.nullcontext() if self._dry_run else self._store.entries.lock.exclusive():
                for name in todo[start : start + _BATCH]:
                    if self._remove(self._store.entries.layout.entry(kind, name)):
                        gone[name] = None
                        self.freed += entry_of(name).size
                    else:
                        self._reasons["in use"] += 1
        return gone

    def _remove(self, path: str) -> bool:
        try:
            if os.stat(path).st_mtime_ns >= self._cutoff_ns:
                return False
            if not self._dry_run:
                os.unlink(path)
                self._folders.add(os.path.dirname(path))
        except FileNotFoundError:
            pass  # another collection was faster
        except OSError as error:
            raise unavailable(error, self._store.entries.layout.root) from error
        return True

    def settle(self) -> None:
        """Make the removals so far survive a loss of power."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                sync_folder(folder)
        self._folders.clear()
