"""Garbage collection in the shared directory of a ``file://`` remote or of nginx. Machines may use the directory meanwhile.

There are no locks, and nginx does not set the mtime of the files that it serves. The collection is safe for these reasons:

1. A reader verifies the bytes, and a missing file is a miss. So only one thing must never happen: that a record stays and
   its files are removed permanently.
2. A writer that finds or writes a file at time S names the file in a record, and publishes this record before S + 30 min.
   If this takes more than 15 min, the writer looks up the file again, and S is the time of this lookup
   (store/remote/files.py, rule 3). The file is not removed within the *grace period* after S. This period is longer than 30
   min: 1 h by default, and at least `MIN_GRACE_S`.
3. A file that no record names is removed in three steps, by collections that are a grace period apart (condemned.py). The
   first collection condemns the file: it notes the time. The second one hides the file: it moves the file out of
   ``cas/``, but only if there is still no record, and if the mtime is older than the grace period. The third one
   removes the file, or moves it back if a record names it now.
4. Rule 3 is safe for this reason: a file is hidden at H, and removed by a collection that began at R, where
   H < R - grace period. A writer that looked for the file after H did not find it, and wrote the file again. A writer that
   looked before H published its record before H + 30 min, which is before R. So the collection listed the record and moved
   the file back.
5. A record can lack a file for a while, if its writer found the file in the 30 min before H. The record is a miss until the
   next build of the step, or the next collection. A `DirectoryTransport` prevents this: it sets the mtime of the files that
   it finds, unless the mtime is less than 15 min old. So these files are not hidden.
6. Records are removed in the order of their last use, and never within the grace period (retention.py). The last use is the
   later of mtime and atime (for files of other users only the mtime: shared_entries.py, rule 2). With relatime (Linux's
   default), the atime is at most a day before the last read. With noatime the atime never changes. Then the records that
   nginx serves are removed in the order in which they were written. After the grace period, a collection also removes
   records that are invalid, or lack a file of the size that they name. A file whose size differs from the size in its
   records is removed in the three steps, too.
7. Each change is one rename or one unlink, and a record is removed before its files. So a collection may be killed at any
   moment. Two collections may run at once: it is not an error if another collection has already moved a file.
8. All times come from the clock of the directory's file system. Only a `dry_run`, which writes nothing, begins at the time
   of this machine's clock. Files with an mtime in the future stay at least until their mtime.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection.condemned import CondemnedFiles
from trtbuild.store.collection.retention import CollectReport, Entry, Scan, Size, records_to_remove, size_of
from trtbuild.store.collection.shared_entries import SharedEntries
from trtbuild.store.local.layout import unavailable_error
from trtbuild.store.remote.files import PUBLISHING_LIMIT_S
from trtbuild.store.remote.records import MAX_ENTRY_SIZE
from trtbuild.store.transports.directory import EMPTY_SHA256, MARK_TOLERANCE_S
from trtbuild.store.transports.shared_folder import SharedFolder

DEFAULT_GRACE_S = 3600.0

#: The shortest safe grace period: the longest time until a writer publishes, plus the longest time by which the mtime of a
#: used file may precede its last use.
MIN_GRACE_S = PUBLISHING_LIMIT_S + MARK_TOLERANCE_S


def collect_directory(
    root: str,
    *,
    max_size: int | None = None,
    max_age_s: float | None = None,
    grace_s: float = DEFAULT_GRACE_S,
    pinned: Iterable[str] = (),
    dry_run: bool = False,
) -> CollectReport:
    """Remove entries until the shared directory `root` has at most `max_size` allocated bytes, and the last use of each
    record was at most `max_age_s` seconds ago. Condemned files do not count, because later collections remove them.

    Records whose keys are `pinned` stay, with their blobs, unless they are invalid or lack a file. With `dry_run` nothing
    is written, and the report has the entries that would be removed. Raises StoreUnavailable.
    """
    try:
        return _Collection(root, grace_s, dry_run).run(max_size, max_age_s, pinned)
    except OSError as error:
        raise unavailable_error(error, root) from error


class _Collection:
    def __init__(self, root: str, grace_s: float, dry_run: bool) -> None:
        self._shared = SharedFolder(root)
        self._entries = SharedEntries(self._shared)
        self._condemned = CondemnedFiles(self._shared)
        self._dry_run = dry_run
        self._check_layout()
        if not dry_run:
            self._shared.make("gc", "hidden")
        self._begun_ns = time.time_ns() if dry_run else self._entries.now_ns()
        self._grace_ns = int(grace_s * 1e9)
        self._cutoff_ns = self._begun_ns - self._grace_ns
        self._scan = Scan()
        self._invalid_records: set[str] = set()
        # Files with a wrong size, after a loss of power. They are removed like files that no record names.
        self._wrong_size_files: dict[str, Entry] = {}
        # Key of a listed record or chunk list → its stamp.
        self._stamps: dict[str, _Stamp] = {}
        self._reasons: Counter[str] = Counter()
        self._freed_size = Size()

    def _check_layout(self) -> None:
        for kind in ("ac", "cas"):
            with contextlib.suppress(FileNotFoundError), self._shared.folder(kind):
                return
        raise StoreUnavailable(
            "this is not a cache: it has neither ac/ nor cas/", file=self._shared.root, hint="is the share mounted?"
        )

    def run(self, max_size: int | None, max_age_s: float | None, pinned: Iterable[str]) -> CollectReport:
        """Remove records (rule 6), then chunk lists without a record, then do the three steps of rule 3 for files."""
        scan = self._scan
        allocated_before = self._entries.allocated_bytes()
        self._list_records()
        self._list_files()
        hidden = {
            name: size for name, _, size in self._condemned.hidden_files() if self._has_named_size(name, size.apparent)
        }
        other_bytes = allocated_before - self._size_of_entries().allocated - _total_size(hidden.values()).allocated

        # Remove records: first the unusable ones, then those over the limits.
        records = dict(scan.records)
        removed_records = self._remove_entries(self._unusable_records(hidden))
        for key in removed_records:
            del scan.records[key]
        pinned_names = scan.entry_names_of(pinned)
        removed_records += self._remove_entries(
            records_to_remove(
                scan, self._begun_ns, self._cutoff_ns, max_size, max_age_s, pinned_names, self._reasons, other_bytes
            )
        )
        # Remove the chunk lists whose blob no remaining record names.
        removed_keys = set(removed_records)
        remaining = [entry for key, entry in records.items() if key not in removed_keys]
        removed_lists = set(self._remove_entries(self._unneeded_lists(remaining)))
        remaining += [entry for key, entry in scan.lists.values() if key not in removed_lists]

        # The three steps for files. Records that were published after the listing, or during the second step, count, too.
        named_files = {file for entry in remaining for file in entry.files} | self._newly_named_files()
        removed, restored = self._remove_hidden(hidden, named_files)
        condemned, newly_hidden = self._condemn_and_hide(named_files)
        restored |= newly_hidden & self._move_back(newly_hidden & self._newly_named_files())
        # Count the files that stay, and the files that later collections will remove.
        kept = (scan.cas.keys() - condemned.keys()) | restored
        files = {**self._wrong_size_files, **scan.cas}
        not_hidden = removed | restored | scan.cas.keys()
        still_hidden = {name: size for name, size in hidden.items() if name not in not_hidden}
        waiting_sizes = [files[name].size for name in condemned if name not in restored] + [*still_hidden.values()]
        leftovers = 0 if self._dry_run else self._entries.remove_leftovers(self._cutoff_ns)
        return CollectReport(
            records_removed=tuple(removed_records),
            lists_removed=len(removed_lists),
            blobs_removed=len(removed),
            freed=self._freed_size,
            records_kept=len(records) - len(removed_records),
            blobs_kept=len(kept),
            kept=self._kept_size(allocated_before, [*remaining, *files.values()], still_hidden.values()),
            kept_because=dict(self._reasons),
            leftovers_removed=leftovers,
            condemned=len(waiting_sizes),
            condemned_size=_total_size(waiting_sizes),
            restored=len(restored),
        )

    def _list_records(self) -> None:
        for key, status, folder in self._entries.list_all("ac"):
            with contextlib.suppress(FileNotFoundError):
                data, used_ns = self._entries.read(key, status, folder, MAX_ENTRY_SIZE)
                self._stamps[key] = _stamp_of(status)
                if not self._scan.add(key, used_ns, size_of(status), data):
                    self._invalid_records.add(key)

    def _list_files(self) -> None:
        # Must run after `_list_records`, so that the files of every listed record are listed too.
        for name, status, _ in self._entries.list_all("cas"):
            files = self._scan.cas if self._has_named_size(name, status.st_size) else self._wrong_size_files
            files[name] = Entry(status.st_mtime_ns, size_of(status))

    def _has_named_size(self, name: str, size: int) -> bool:
        """Whether a CAS file has a size that a record or list gives it.

        If no entry names the file, any size except 0 is right. Size 0 is right only for the blob of no bytes."""
        sizes = self._scan.sizes.get(name)
        return (size > 0 or name == EMPTY_SHA256) and (sizes is None or size in sizes)

    def _newly_named_files(self) -> set[str]:
        """The files that are named by entries added or changed since the listing."""
        new_scan = Scan()
        for key, status, folder in self._entries.list_all("ac"):
            if self._stamps.get(key) != _stamp_of(status):
                with contextlib.suppress(FileNotFoundError):
                    data, used_ns = self._entries.read(key, status, folder, MAX_ENTRY_SIZE)
                    new_scan.add(key, used_ns, size_of(status), data)
        entries = [*new_scan.records.values(), *(entry for _, entry in new_scan.lists.values())]
        return {file for entry in entries for file in entry.files}

    def _size_of_entries(self) -> Size:
        """The total size of the listed entries, except files of a wrong size."""
        scan = self._scan
        lists = [entry for _, entry in scan.lists.values()]
        return _total_size(entry.size for entry in [*scan.records.values(), *lists, *scan.cas.values()])

    def _unusable_records(self, hidden: Collection[str]) -> list[str]:
        """The keys of the records that are invalid or lack a file (rule 6)."""
        available = self._scan.cas.keys() | set(hidden)
        return [
            key
            for key, entry in self._scan.records.items()
            if self._stamps[key].mtime_ns < self._cutoff_ns
            and (key in self._invalid_records or not available.issuperset(entry.files))
        ]

    def _unneeded_lists(self, remaining: Iterable[Entry]) -> list[str]:
        """The keys of the chunk lists whose blob none of the `remaining` records names, if they are older than the
        cut-off."""
        blobs = {blob for entry in remaining for blob in entry.blobs}
        lists = self._scan.lists.items()
        return [key for blob, (key, entry) in lists if blob not in blobs and entry.used_ns < self._cutoff_ns]

    def _remove_entries(self, keys: Iterable[str]) -> list[str]:
        """Remove those of these entries that have not changed since the listing. Returns their keys, and those of entries
        that another process has removed."""
        removed_keys = []
        for key in keys:
            status = self._entries.status("ac", key)
            if status is not None and _stamp_of(status) != self._stamps[key]:
                self._reasons["in use"] += 1
                continue
            if status is not None:
                self._freed_size += size_of(status)
                if not self._dry_run:
                    self._entries.remove("ac", key)
            removed_keys.append(key)
        return removed_keys

    def _remove_hidden(self, hidden: Mapping[str, Size], named_files: Collection[str]) -> tuple[set[str], set[str]]:
        """The third step of rule 3. Returns the removed files, and the files that were moved back."""
        restored = self._move_back(hidden.keys() & set(named_files))
        if self._dry_run:
            hidden_files = self._condemned.hidden_files()
            due_files = {name: size for name, time_ns, size in hidden_files if time_ns < self._cutoff_ns}
            removed = {name: size for name, size in due_files.items() if name not in hidden or name not in named_files}
        else:
            removed = self._condemned.remove(self._cutoff_ns, self._begun_ns, hidden.keys() & set(named_files))
        self._freed_size += _total_size(removed.values())
        return set(removed), restored

    def _move_back(self, names: set[str]) -> set[str]:
        return names if self._dry_run else self._condemned.move_back(names)

    def _condemn_and_hide(self, named_files: Collection[str]) -> tuple[dict[str, int], set[str]]:
        """The first and second steps of rule 3. Returns the condemned files (name → time in ns), and the hidden ones."""
        known_times = self._condemned.condemned_times(self._begun_ns)
        condemned = {}
        for name, entry in {**self._wrong_size_files, **self._scan.cas}.items():
            if name in named_files and name not in self._wrong_size_files:
                continue
            if entry.used_ns < self._cutoff_ns:
                condemned[name] = known_times.get(name, self._begun_ns)
            else:
                self._reasons["in use"] += 1
        if self._dry_run:
            return condemned, set()
        due_files = [name for name, time_ns in condemned.items() if time_ns < self._cutoff_ns]
        newly_hidden = self._condemned.hide(due_files, self._cutoff_ns)
        self._condemned.write_times({name: time_ns for name, time_ns in condemned.items() if name not in newly_hidden})
        return condemned, set(newly_hidden)

    def _kept_size(self, allocated_before: int, entries: Iterable[Entry], hidden_sizes: Iterable[Size]) -> Size:
        """The allocated bytes after the collection, as `du` counts, and the lengths of the files that stay."""
        allocated = allocated_before - self._freed_size.allocated if self._dry_run else self._entries.allocated_bytes()
        return Size(allocated, (_total_size(entry.size for entry in entries) + _total_size(hidden_sizes)).apparent)


class _Stamp(NamedTuple):
    """The stat values of a file by which a replacement is noticed."""

    mtime_ns: int
    inode: int
    size: int


def _stamp_of(status: os.stat_result) -> _Stamp:
    return _Stamp(status.st_mtime_ns, status.st_ino, status.st_size)


def _total_size(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())
