"""Collection: a local store kept within bounds. Safe beside running builds; the argument is in local.py, rules 4 to 6.

Rules
1. What no session can rely on is what has an mtime before the cut-off: the earlier of this collection's start and the
   starts of all sessions that live then, less a slack. Nothing else is removed, whatever the bounds say.
2. Every removal looks at the mtime again, under the exclusive store-wide lock, which is held for short batches.
3. Records go first, least recently used first: those past the age, then as many as the size asks for. After them the
   chunk lists of blobs that no remaining record names, then the CAS files that no remaining record or list names.
   What remains is computed anew after each step, so a record that was used in the meantime keeps its blobs.
4. Unreferenced blobs before the cut-off always go: without a record no build finds them.
5. Sizes that bounds are compared with are allocated ones (``st_blocks``, as `du` counts). Apparent sizes are told too.
"""

# Paths are strings here, as in the rest of the store.
# ruff: noqa: PTH108, PTH116
from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trtbuild.store.action_result import ActionResult, list_key
from trtbuild.store.layout import Kind, Layout, unavailable
from trtbuild.store.leftovers import remove_leftovers, session_starts
from trtbuild.store.local import LocalStore
from trtbuild.store.publication import sync_folder

#: Covers the coarsest time stamps of a file system in use (FAT: 2 s), in seconds.
SLACK_S = 2.0

_BATCH = 64


@dataclass(frozen=True)
class Size:
    """Bytes on the disk, as `du` counts, and bytes as the files have them."""

    allocated: int = 0
    apparent: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.allocated + other.allocated, self.apparent + other.apparent)


@dataclass(frozen=True)
class CollectReport:
    """What a collection removed and kept. Blobs are CAS files: whole blobs, chunks and record documents."""

    records_removed: tuple[str, ...]
    lists_removed: int
    blobs_removed: int
    freed: Size
    records_kept: int
    blobs_kept: int
    kept: Size
    #: Why records and blobs were kept that the bounds, or rule 4, would have removed: reason → how many.
    kept_because: Mapping[str, int]
    #: Files of dead processes (``tmp/``, ``locks/``, ``sessions/``) and old quarantined entries that were removed.
    leftovers_removed: int


@dataclass(frozen=True)
class _Entry:
    mtime_ns: int
    size: Size
    # Of AC entries: the CAS files that it names, and the blobs that these make up.
    files: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


@dataclass
class _Scan:
    records: dict[str, _Entry] = field(default_factory=dict)
    lists: dict[str, tuple[str, _Entry]] = field(default_factory=dict)  # by blob: the list's key, and the list
    cas: dict[str, _Entry] = field(default_factory=dict)


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
    """Bring `store` to at most `max_size` allocated bytes, and records to an age since last use of `max_age_s`.

    Records whose keys are `pinned` stay, with their blobs. With `dry_run` nothing is removed and the report says what
    would be. Raises StoreUnavailable.
    """
    layout = store.entries.layout
    store.entries.prepare()
    begun_ns, cutoff_ns = _begin(store, int(slack_s * 1e9))
    scan = _scan(layout)
    reasons: Counter[str] = Counter()
    doomed = _doomed(scan, begun_ns, cutoff_ns, max_size, max_age_s, frozenset(pinned), reasons)
    removal = _Removal(store, cutoff_ns, dry_run, reasons)

    gone = removal.run("ac", doomed, lambda key: scan.records[key])
    remaining = [entry for key, entry in scan.records.items() if key not in gone]

    named_blobs = {blob for entry in remaining for blob in entry.blobs}
    idle = {key: entry for blob, (key, entry) in scan.lists.items() if blob not in named_blobs}
    gone_lists = removal.run("ac", idle, idle.__getitem__)
    removal.settle()  # no power loss may leave a record whose blobs are gone

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
        return begun_ns, min([begun_ns, *session_starts(layout)]) - slack_ns


def _scan(layout: Layout) -> _Scan:
    scan = _Scan()
    for key, stat in layout.entries("ac"):
        entry = _Entry(stat.st_mtime_ns, _size(stat))
        # One that cannot be read names nothing, and goes as a record does when its time comes.
        with contextlib.suppress(OSError, ValueError):
            with open(layout.entry("ac", key), "rb") as file:
                action = ActionResult.from_bytes(file.read())
            files = tuple({part.sha256 for _, part in action.files})
            entry = _Entry(entry.mtime_ns, entry.size, files, tuple(action.blobs()))
        if len(entry.blobs) == 1 and list_key(entry.blobs[0]) == key:
            scan.lists[entry.blobs[0]] = (key, entry)
        else:
            scan.records[key] = entry
    for name, stat in layout.entries("cas"):
        scan.cas[name] = _Entry(stat.st_mtime_ns, _size(stat))
    return scan


def _size(stat: os.stat_result) -> Size:
    return Size(stat.st_blocks * 512, stat.st_size)


def _doomed(
    scan: _Scan,
    begun_ns: int,
    cutoff_ns: int,
    max_size: int | None,
    max_age_s: float | None,
    pinned: Collection[str],
    reasons: Counter[str],
) -> list[str]:
    """The records to remove, least recently used first."""
    account = _Account(scan, cutoff_ns)
    doomed = []
    for key in sorted(scan.records, key=lambda key: (scan.records[key].mtime_ns, key)):
        entry = scan.records[key]
        too_old = max_age_s is not None and entry.mtime_ns < begun_ns - int(max_age_s * 1e9)
        too_much = max_size is not None and account.allocated > max_size
        if not too_old and not too_much:
            continue
        if key in pinned:
            reasons["pinned"] += 1
        elif entry.mtime_ns >= cutoff_ns:
            reasons["in use"] += 1
        else:
            account.drop(entry)
            doomed.append(key)
    return doomed


class _Account:
    """How many allocated bytes will remain, as records are given up one by one."""

    def __init__(self, scan: _Scan, cutoff_ns: int) -> None:
        self._scan = scan
        self._cutoff_ns = cutoff_ns
        self._blob_uses = Counter(blob for entry in scan.records.values() for blob in entry.blobs)
        live_lists = [e for blob, (_, e) in scan.lists.items() if self._blob_uses[blob] or self._recent(e)]
        holders = [*scan.records.values(), *live_lists]
        self._file_uses = Counter(file for entry in holders for file in entry.files)
        files = [e for name, e in scan.cas.items() if self._file_uses[name] or self._recent(e)]
        self.allocated = sum(entry.size.allocated for entry in [*holders, *files])

    def _recent(self, entry: _Entry) -> bool:
        return entry.mtime_ns >= self._cutoff_ns

    def drop(self, entry: _Entry) -> None:
        self.allocated -= entry.size.allocated
        self._release(entry.files)
        for blob in entry.blobs:
            self._blob_uses[blob] -= 1
            found = self._scan.lists.get(blob)
            if found and not self._blob_uses[blob] and not self._recent(found[1]):
                self.allocated -= found[1].size.allocated
                self._release(found[1].files)

    def _release(self, files: Iterable[str]) -> None:
        for file in files:
            self._file_uses[file] -= 1
            entry = self._scan.cas.get(file)
            if entry and not self._file_uses[file] and not self._recent(entry):
                self.allocated -= entry.size.allocated


class _Removal:
    """Removes entries in batches (rule 2), and keeps the account."""

    def __init__(self, store: LocalStore, cutoff_ns: int, dry_run: bool, reasons: Counter[str]) -> None:
        self._store = store
        self._cutoff_ns = cutoff_ns
        self._dry_run = dry_run
        self._reasons = reasons
        self._folders: set[str] = set()
        self.freed = Size()

    def run(self, kind: Kind, names: Iterable[str], entry_of: Callable[[str], _Entry]) -> dict[str, None]:
        """Remove what still is before the cut-off; the names that are gone, in order."""
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
        for folder in self._folders:
            with contextlib.suppress(OSError):
                sync_folder(folder)
        self._folders.clear()
