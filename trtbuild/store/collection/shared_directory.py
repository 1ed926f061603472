"""Collection of a shared directory (``file://``, or the one behind nginx) while any machine reads and writes it.

There are no locks, and nginx does not mark the files that it serves as used. The collection is safe for these reasons:

1. A reader verifies the bytes, and a missing file is a miss. So only one thing must never happen: a record stays, and its
   files are removed permanently.
2. A writer that finds or writes a file at time S publishes the record that names the file before S + 30 min. After that
   time the writer checks the file again (files.py, `TRUSTED_S`). The grace period of a collection is longer: 1 h by
   default, and at least `LEAST_GRACE_S`.
3. A file that no record names is removed in three steps, by collections that are a grace period apart (condemned.py). The
   first collection condemns the file. The second hides the file, which means that it moves the file out of ``cas/``. It
   does so only if still no record names the file and its mtime is older than the grace period. The third removes the file,
   or moves it back if a record names it now.
4. Proof: a file is hidden at H, and removed by a collection that began at R, where H < R - grace period. A writer that
   looked after H did not find the file, and wrote its own. A writer that looked before H published before H + 30 min, which
   is before R. So that collection listed its record and moved the file back. No record loses its files permanently.
5. A record can lack a file for a while: its writer found, in the 30 min before H, a file that no record had named for a
   grace period. The record is a miss until the next build of the step, or the next collection. A `DirectoryTransport` sets
   the mtime of the files that it finds, unless the mtime is less than 15 min old. So by step 3, this case cannot happen to
   it.
6. Records are removed in the order of their last use, and never within the grace period (retention.py). The last use is the
   later of mtime and atime. nginx does not set the mtime. With relatime (Linux's default) an atime is at most a day old.
   With noatime it never changes, so the records that were written first are removed first. After the grace period, a
   collection also removes records that are invalid, or lack a file of the size that they name. Files of a size that no
   record names are removed in the three steps.
7. Each change is one rename or one unlink, and a record is removed before its files. So a collection may be killed at any
   moment. Two collections may run at once: a file that one collection has moved is missing for the other, which is not
   an error.
8. All times come from the clock of the directory's file system. Files with an mtime in the future stay until that time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection.condemned import Condemned
from trtbuild.store.collection.retention import CollectReport, Entry, Scan, Size, doomed_records, size_of
from trtbuild.store.collection.shelves import Shelves
from trtbuild.store.local.layout import unavailable
from trtbuild.store.remote.files import TRUSTED_S
from trtbuild.store.remote.records import MAX_ENTRY
from trtbuild.store.transports.directory import EMPTY_BLOB, USED_WITHIN_S
from trtbuild.store.transports.shared_folder import SharedFolder

GRACE_S = 3600.0

#: The shortest safe grace period: the longest time until a writer publishes, plus the longest time in which a used file is
#: not marked as used again.
LEAST_GRACE_S = TRUSTED_S + USED_WITHIN_S


def collect_directory(
    root: str,
    *,
    max_size: int | None = None,
    max_age_s: float | None = None,
    grace_s: float = GRACE_S,
    pinned: Iterable[str] = (),
    dry_run: bool = False,
) -> CollectReport:
    """Remove entries until the shared directory `root` has at most `max_size` allocated bytes, and no record was last used
    over `max_age_s` ago. Condemned files do not count: later collections remove them.

    Records whose keys are `pinned` stay, with their blobs. With `dry_run` nothing is written, and the report says what
    would be done. Raises StoreUnavailable.
    """
    try:
        return _Collection(root, grace_s, dry_run).run(max_size, max_age_s, pinned)
    except OSError as error:
        raise unavailable(error, root) from error


class _Collection:
    def __init__(self, root: str, grace_s: float, dry_run: bool) -> None:
        self._shared = SharedFolder(root)
        self._shelves = Shelves(self._shared)
        self._condemned = Condemned(self._shared)
        self._dry_run = dry_run
        self._check_layout()
        if not dry_run:
            self._shared.make("gc", "hidden")
        self._begun_ns = time.time_ns() if dry_run else self._shelves.now_ns()
        self._grace_ns = int(grace_s * 1e9)
        self._cutoff_ns = self._begun_ns - self._grace_ns
        self._scan = Scan()
        self._unreadable: set[str] = set()
        # Files that a loss of power has damaged. They are removed like unreferenced files, even if a record names them.
        self._torn: dict[str, Entry] = {}
        # The mtime, inode and size of each listed entry. They differ if another file has replaced the entry.
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._reasons: Counter[str] = Counter()
        self._freed = Size()

    def _check_layout(self) -> None:
        for kind in ("ac", "cas"):
            with contextlib.suppress(FileNotFoundError), self._shared.folder(kind):
                return
        raise StoreUnavailable(
            "this is not a cache: it has neither ac/ nor cas/", file=self._shared.root, hint="is the share mounted?"
        )

    def run(self, max_size: int | None, max_age_s: float | None, pinned: Iterable[str]) -> CollectReport:
        scan = self._scan
        before = self._shelves.allocated()
        self._list_records()
        self._list_files()
        hidden = {name: size for name, _, size in self._condemned.hidden() if self._is_whole(name, size.apparent)}
        besides = before - self._entries().allocated - _sum(hidden.values()).allocated

        records = dict(scan.records)
        gone = self._remove(self._useless(hidden))
        for key in gone:
            del scan.records[key]
        places = scan.places_of(pinned)
        gone += self._remove(
            doomed_records(scan, self._begun_ns, self._cutoff_ns, max_size, max_age_s, places, self._reasons, besides)
        )
        remaining = [entry for key, entry in records.items() if key not in set(gone)]
        gone_lists = self._remove(self._idle_lists(remaining))
        remaining += [entry for key, entry in scan.lists.values() if key not in set(gone_lists)]

        # Records that were published since the listing count, too, and so do records published while files are hidden.
        named = {file for entry in remaining for file in entry.files} | self._named_since()
        removed, restored = self._finish(hidden, named)
        condemned, newly_hidden = self._start(named)
        restored |= newly_hidden & self._put_back(newly_hidden & self._named_since())
        kept = (scan.cas.keys() - condemned.keys()) | restored
        files = {**self._torn, **scan.cas}
        still_hidden = {name: size for name, size in hidden.items() if name not in removed | restored | scan.cas.keys()}
        waiting = [files[name].size for name in condemned if name not in restored] + [*still_hidden.values()]
        leftovers = 0 if self._dry_run else self._shelves.remove_leftovers(self._cutoff_ns)
        return CollectReport(
            records_removed=tuple(gone),
            lists_removed=len(gone_lists),
            blobs_removed=len(removed),
            freed=self._freed,
            records_kept=len(records) - len(gone),
            blobs_kept=len(kept),
            kept=self._kept(before, [*remaining, *files.values()], still_hidden.values()),
            kept_because=dict(self._reasons),
            leftovers_removed=leftovers,
            condemned=len(waiting),
            condemned_size=_sum(waiting),
            restored=len(restored),
        )

    def _list_records(self) -> None:
        for key, status, folder in self._shelves.entries("ac"):
            with contextlib.suppress(FileNotFoundError):
                data, used_ns = self._shelves.read(key, status, folder, MAX_ENTRY)
                self._stamps[key] = _stamp(status)
                if not self._scan.add(key, used_ns, size_of(status), data):
                    self._unreadable.add(key)

    def _list_files(self) -> None:
        # Must run after `_list_records`, so that the files of every listed record are listed too.
        for name, status, _ in self._shelves.entries("cas"):
            files = self._scan.cas if self._is_whole(name, status.st_size) else self._torn
            files[name] = Entry(status.st_mtime_ns, size_of(status))

    def _is_whole(self, name: str, size: int) -> bool:
        sizes = self._scan.sizes.get(name)
        return (size > 0 or name == EMPTY_BLOB) and (sizes is None or size in sizes)

    def _named_since(self) -> set[str]:
        """The files named by entries that were added or changed since the listing."""
        fresh = Scan()
        for key, status, folder in self._shelves.entries("ac"):
            if self._stamps.get(key) != _stamp(status):
                with contextlib.suppress(FileNotFoundError):
                    data, used_ns = self._shelves.read(key, status, folder, MAX_ENTRY)
                    fresh.add(key, used_ns, size_of(status), data)
        entries = [*fresh.records.values(), *(entry for _, entry in fresh.lists.values())]
        return {file for entry in entries for file in entry.files}

    def _entries(self) -> Size:
        scan = self._scan
        lists = [entry for _, entry in scan.lists.values()]
        return _sum(entry.size for entry in [*scan.records.values(), *lists, *scan.cas.values()])

    def _useless(self, hidden: Collection[str]) -> list[str]:
        """The records that cannot be used (rule 6)."""
        available = self._scan.cas.keys() | set(hidden)
        return [
            key
            for key, entry in self._scan.records.items()
            if self._stamps[key][0] < self._cutoff_ns
            and (key in self._unreadable or not available.issuperset(entry.files))
        ]

    def _idle_lists(self, remaining: Iterable[Entry]) -> list[str]:
        blobs = {blob for entry in remaining for blob in entry.blobs}
        lists = self._scan.lists.items()
        return [key for blob, (key, entry) in lists if blob not in blobs and entry.used_ns < self._cutoff_ns]

    def _remove(self, keys: Iterable[str]) -> list[str]:
        """Remove the entries that have not changed since the listing. Returns their keys."""
        gone = []
        for key in keys:
            status = self._shelves.status("ac", key)
            if status is not None and _stamp(status) != self._stamps[key]:
                self._reasons["in use"] += 1
                continue
            if status is not None:
                self._freed += size_of(status)
                if not self._dry_run:
                    self._shelves.remove("ac", key)
            gone.append(key)
        return gone

    def _finish(self, hidden: Mapping[str, Size], named: Collection[str]) -> tuple[set[str], set[str]]:
        """The third step (rule 3). Returns the removed files, and the files that were moved back."""
        restored = self._put_back(hidden.keys() & set(named))
        if self._dry_run:
            due = {name: size for name, at_ns, size in self._condemned.hidden() if at_ns < self._cutoff_ns}
            removed = {name: size for name, size in due.items() if name not in hidden or name not in named}
        else:
            removed = self._condemned.remove(self._cutoff_ns, self._begun_ns, hidden.keys() & set(named))
        self._freed += _sum(removed.values())
        return set(removed), restored

    def _put_back(self, names: set[str]) -> set[str]:
        return names if self._dry_run else self._condemned.put_back(names)

    def _start(self, named: Collection[str]) -> tuple[dict[str, int], set[str]]:
        """The first and second steps (rule 3). Returns the condemned files with their times, and the files hidden now."""
        since = self._condemned.since(self._begun_ns)
        condemned = {}
        for name, entry in {**self._torn, **self._scan.cas}.items():
            if name in named and name not in self._torn:
                continue
            if entry.used_ns < self._cutoff_ns:
                condemned[name] = since.get(name, self._begun_ns)
            else:
                self._reasons["in use"] += 1
        if self._dry_run:
            return condemned, set()
        due = [name for name, since_ns in condemned.items() if since_ns < self._cutoff_ns]
        newly_hidden = self._condemned.hide(due, self._cutoff_ns)
        self._condemned.keep({name: since_ns for name, since_ns in condemned.items() if name not in newly_hidden})
        return condemned, set(newly_hidden)

    def _kept(self, before: int, entries: Iterable[Entry], files: Iterable[Size]) -> Size:
        """The allocated bytes on the disk now, as `du` counts, and the lengths of the kept files."""
        allocated = before - self._freed.allocated if self._dry_run else self._shelves.allocated()
        return Size(allocated, (_sum(entry.size for entry in entries) + _sum(files)).apparent)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ino, status.st_size


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())
