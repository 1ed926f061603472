"""Collection of a shared directory (``file://``, or the one behind nginx) beside readers and writers on any machine.

There are no locks, and nginx leaves no mark on what it answers. Why it is safe all the same:

1. A reader verifies what it reads, and takes what is gone as a miss. So one thing alone must not come about: a record that
   stays and whose files are gone for good.
2. A writer that finds a file there at S, or writes it, publishes the record that names it by S + 30 min: after longer
   than that it looks again (files.py, `TRUSTED_S`). The grace of a collection is longer: 1 h, never less than
   `LEAST_GRACE_S`.
3. A file that no record names goes in three steps, by collections that are a grace apart (condemned.py): the first
   condemns it; the second, if again no record names it, and its mtime is older than the grace, hides it: takes it out of
   ``cas/``; the third removes it, or puts it back if a record names it by then.
4. So let a file be removed by the collection that began at R, and hidden at H, before R - grace. Writers that looked
   after H did not find it, and wrote their own. Writers that looked before H had published before H + 30 min, which is
   before R: their record was listed, and the file was put back. No record loses its files for good.
5. In between, a record can lack a file for a while if its writer found, in the half hour before H, a file that no record
   had named for a grace: a miss, until somebody builds that step or the next collection comes. A `DirectoryTransport`
   marks what it finds, by an mtime that is at most 15 min old; so there, by step 3, not even this can be.
6. Records go by last use, the later of mtime and atime, as retention.py says, and never before the grace is over. nginx
   marks nothing; a file system with relatime (Linux's default) renews an atime once a day, with noatime never: then what
   was written first goes first. Records that cannot be read, or whose files are not all there in the size that they say, go
   after the grace; and so, in three steps, do files of which no record says the size that they have.
7. Every step is one rename or one unlink, the record before its files. So a collection that dies at any moment leaves
   what another one may leave. Two at once do no harm: what one has moved, the other finds gone.
8. All times are those of the directory's file system. Files with an mtime that is yet to come stay until it has come.
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

#: A shorter grace would not cover what writers may take, and the marks that they leave.
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
    """Bring the shared directory `root` to at most `max_size` allocated bytes (not counting what is condemned, which later
    collections remove), and records to an age since last use of `max_age_s`.

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
        self._check_that_it_is_one()
        if not dry_run:
            self._shared.make("gc", "hidden")
        self._begun_ns = time.time_ns() if dry_run else self._shelves.now_ns()
        self._grace_ns = int(grace_s * 1e9)
        self._cutoff_ns = self._begun_ns - self._grace_ns
        self._scan = Scan()
        self._unreadable: set[str] = set()
        # What a loss of power left in the place of files. It goes as files do that no record names, whoever names it.
        self._torn: dict[str, Entry] = {}
        # Of each entry: what tells the file that was read from another one in its place, the mtime first.
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._reasons: Counter[str] = Counter()
        self._freed = Size()

    def _check_that_it_is_one(self) -> None:
        for kind in ("ac", "cas"):
            with contextlib.suppress(FileNotFoundError), self._shared.folder(kind):
                return
        raise StoreUnavailable(
            "this is no cache: it has neither ac/ nor cas/", file=self._shared.root, hint="is the share mounted?"
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

        # What was published since the records were listed counts, and so does what is published while files are hidden.
        named = {file for entry in remaining for file in entry.files} | self._named_since()
        removed, back = self._finish(hidden, named)
        condemned, hid = self._start(named)
        back |= hid & self._put_back(hid & self._named_since())
        stay = (scan.cas.keys() - condemned.keys()) | back
        files = {**self._torn, **scan.cas}
        left = {name: size for name, size in hidden.items() if name not in removed | back | scan.cas.keys()}
        waiting = [files[name].size for name in condemned if name not in back] + [*left.values()]
        leftovers = 0 if self._dry_run else self._shelves.remove_leftovers(self._cutoff_ns)
        return CollectReport(
            records_removed=tuple(gone),
            lists_removed=len(gone_lists),
            blobs_removed=len(removed),
            freed=self._freed,
            records_kept=len(records) - len(gone),
            blobs_kept=len(stay),
            kept=self._kept(before, [*remaining, *files.values()], left.values()),
            kept_because=dict(self._reasons),
            leftovers_removed=leftovers,
            condemned=len(waiting),
            condemned_size=_sum(waiting),
            restored=len(back),
        )

    def _list_records(self) -> None:
        for key, status, folder in self._shelves.entries("ac"):
            with contextlib.suppress(FileNotFoundError):
                data, used_ns = self._shelves.read(key, status, folder, MAX_ENTRY)
                self._stamps[key] = _stamp(status)
                if not self._scan.add(key, used_ns, size_of(status), data):
                    self._unreadable.add(key)

    def _list_files(self) -> None:
        # After the records: so the files of every record that was listed are.
        for name, status, _ in self._shelves.entries("cas"):
            there = self._scan.cas if self._is_whole(name, status.st_size) else self._torn
            there[name] = Entry(status.st_mtime_ns, size_of(status))

    def _is_whole(self, name: str, size: int) -> bool:
        sizes = self._scan.sizes.get(name)
        return (size > 0 or name == EMPTY_BLOB) and (sizes is None or size in sizes)

    def _named_since(self) -> set[str]:
        """The files that entries name which were not there, or others, when they were listed."""
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
        """Records that nobody can use (rule 6)."""
        there = self._scan.cas.keys() | set(hidden)
        return [
            key
            for key, entry in self._scan.records.items()
            if self._stamps[key][0] < self._cutoff_ns and (key in self._unreadable or not there.issuperset(entry.files))
        ]

    def _idle_lists(self, remaining: Iterable[Entry]) -> list[str]:
        blobs = {blob for entry in remaining for blob in entry.blobs}
        lists = self._scan.lists.items()
        return [key for blob, (key, entry) in lists if blob not in blobs and entry.used_ns < self._cutoff_ns]

    def _remove(self, keys: Iterable[str]) -> list[str]:
        """Remove entries that are still those that were listed; which ones."""
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
        """The third step (rule 3): which files were removed, and which put back."""
        back = self._put_back(hidden.keys() & set(named))
        if self._dry_run:
            due = {name: size for name, at_ns, size in self._condemned.hidden() if at_ns < self._cutoff_ns}
            removed = {name: size for name, size in due.items() if name not in hidden or name not in named}
        else:
            removed = self._condemned.remove(self._cutoff_ns, self._begun_ns, hidden.keys() & set(named))
        self._freed += _sum(removed.values())
        return set(removed), back

    def _put_back(self, names: set[str]) -> set[str]:
        return names if self._dry_run else self._condemned.put_back(names)

    def _start(self, named: Collection[str]) -> tuple[dict[str, int], set[str]]:
        """The first and the second step (rule 3): the condemned files and since when, and those of them that are hidden."""
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
        hid = self._condemned.hide(due, self._cutoff_ns)
        self._condemned.keep({name: since_ns for name, since_ns in condemned.items() if name not in hid})
        return condemned, set(hid)

    def _kept(self, before: int, entries: Iterable[Entry], files: Iterable[Size]) -> Size:
        """All that is on the disk now, as `du` counts; and the bytes of what it holds."""
        allocated = before - self._freed.allocated if self._dry_run else self._shelves.allocated()
        return Size(allocated, (_sum(entry.size for entry in entries) + _sum(files)).apparent)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ino, status.st_size


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())
