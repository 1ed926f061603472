"""The retention policy: chooses the records to remove, from the entries of a store and the files that these name.

Rules
1. Records are removed in the order of their last use, the oldest first. All records over the age limit are removed, then as
   many as the size limit requires. Pinned records (the user has named their keys) are never removed, and neither are
   records that were used at or after the cut-off (collect.py, rule 1).
2. When a record is removed, the chunk lists and files that no remaining record needs are counted as freed, too, unless they
   were used at or after the cut-off.
3. A pinned key protects the entry under the key, and the domain entries of the key (core/recipes/trust.py, rule 4).
4. Size limits are compared with allocated sizes (``st_blocks``, as `du` counts).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trtbuild.core.recipes.trust import domain_key
from trtbuild.store.trust.action_result import ActionResult, list_key


@dataclass(frozen=True)
class Size:
    """The bytes that files take on the disk (`allocated`, as `du` counts), and their lengths (`apparent`)."""

    allocated: int = 0
    apparent: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.allocated + other.allocated, self.apparent + other.apparent)


@dataclass(frozen=True)
class CollectReport:
    """The removed and the kept entries.

    `blobs_removed` and `blobs_kept` count all CAS files: chunks, record documents, and blobs that are not split.
    """

    records_removed: tuple[str, ...]
    lists_removed: int
    blobs_removed: int
    freed: Size
    records_kept: int
    blobs_kept: int
    kept: Size
    #: Reason (``pinned``, ``in use``) → number of entries that are kept for this reason.
    kept_because: Mapping[str, int]
    #: The number of removed files of dead processes (``tmp/``, ``locks/``, ``sessions/``) and old quarantined entries.
    leftovers_removed: int
    #: Shared directories only: files that a later collection will remove.
    condemned: int = 0
    condemned_size: Size = Size()
    #: Shared directories only: hidden files that a record needs again, and that this collection has moved back.
    restored: int = 0


@dataclass(frozen=True)
class Entry:
    """A file of a store: its last use, in ns of the file system's clock, and its size.

    A record or chunk list also has the CAS files that it names (`files`), and the outputs that consist of these files
    (`blobs`).
    """

    used_ns: int
    size: Size
    files: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


@dataclass
class Scan:
    """All entries of a store."""

    records: dict[str, Entry] = field(default_factory=dict)  # name of an entry in ``ac/`` → the record
    lists: dict[str, tuple[str, Entry]] = field(default_factory=dict)  # blob → the key of its chunk list, and the list
    cas: dict[str, Entry] = field(default_factory=dict)  # CAS file → its last use and size
    domains: set[str] = field(default_factory=set)  # the domains (origins) that the records' signatures name
    sizes: dict[str, set[int]] = field(default_factory=dict)  # CAS file → the sizes that records and lists give it

    def add(self, key: str, used_ns: int, size: Size, data: bytes | None) -> bool:
        """Add the record or chunk list under `key`. An invalid entry is added as a record without files, and False is
        returned."""
        try:
            action = ActionResult.from_bytes(data or b"")
            entry = Entry(used_ns, size, tuple({file.sha256 for _, file in action.files}), tuple(action.blobs()))
        except ValueError:
            self.records[key] = Entry(used_ns, size)
            return False
        self.domains.update(signature.domain for signature in action.signatures)
        for _, file in action.files:
            self.sizes.setdefault(file.sha256, set()).add(file.size)
        if len(entry.blobs) == 1 and list_key(entry.blobs[0]) == key:
            self.lists[entry.blobs[0]] = (key, entry)
        else:
            self.records[key] = entry
        return True

    def entry_names_of(self, keys: Iterable[str]) -> frozenset[str]:
        """The names of all entries that may hold the records of `keys` (core/recipes/trust.py, rule 4)."""
        return frozenset(name for key in keys for name in (key, *(domain_key(domain, key) for domain in self.domains)))


def size_of(stat: os.stat_result) -> Size:
    """The size of a file."""
    return Size(stat.st_blocks * 512, stat.st_size)


def records_to_remove(
    scan: Scan,
    start_ns: int,
    cutoff_ns: int,
    max_size: int | None,
    max_age_s: float | None,
    pinned: Collection[str],
    reasons: Counter[str],
    other_bytes: int = 0,
) -> list[str]:
    """The keys of the records to remove, least recently used first. Counts in `reasons` why records over a limit are kept.

    `start_ns` is the start of the collection, and `cutoff_ns` the cut-off (collect.py, rule 1).
    `other_bytes` is the number of allocated bytes that belong to no entry, such as those of directories.
    """
    remaining_size = RemainingSize(scan, cutoff_ns, other_bytes)
    keys = []
    for key in sorted(scan.records, key=lambda key: (scan.records[key].used_ns, key)):
        entry = scan.records[key]
        exceeds_age = max_age_s is not None and entry.used_ns < start_ns - int(max_age_s * 1e9)
        exceeds_size = max_size is not None and remaining_size.allocated > max_size
        if not exceeds_age and not exceeds_size:
            continue
        if key in pinned:
            reasons["pinned"] += 1
        elif entry.used_ns >= cutoff_ns:
            reasons["in use"] += 1
        else:
            remaining_size.remove_record(entry)
            keys.append(key)
    return keys


class RemainingSize:
    """The allocated bytes that remain while records are removed one by one."""

    def __init__(self, scan: Scan, cutoff_ns: int, other_bytes: int = 0) -> None:
        self._scan = scan
        self._cutoff_ns = cutoff_ns
        self._blob_uses = Counter(blob for entry in scan.records.values() for blob in entry.blobs)
        live_lists = [item for blob, (_, item) in scan.lists.items() if self._blob_uses[blob] or self._is_recent(item)]
        remaining_entries = [*scan.records.values(), *live_lists]
        self._file_uses = Counter(file for entry in remaining_entries for file in entry.files)
        files = [item for name, item in scan.cas.items() if self._file_uses[name] or self._is_recent(item)]
        self.allocated = other_bytes + sum(entry.size.allocated for entry in [*remaining_entries, *files])

    def _is_recent(self, entry: Entry) -> bool:
        return entry.used_ns >= self._cutoff_ns

    def remove_record(self, entry: Entry) -> None:
        """Subtract the bytes that the removal of a record frees (rule 2)."""
        self.allocated -= entry.size.allocated
        self._release_files(entry.files)
        for blob in entry.blobs:
            self._blob_uses[blob] -= 1
            _, chunk_list = self._scan.lists.get(blob, ("", None))
            if chunk_list and not self._blob_uses[blob] and not self._is_recent(chunk_list):
                self.allocated -= chunk_list.size.allocated
                self._release_files(chunk_list.files)

    def _release_files(self, files: Iterable[str]) -> None:
        for file in files:
            self._file_uses[file] -= 1
            entry = self._scan.cas.get(file)
            if entry and not self._file_uses[file] and not self._is_recent(entry):
                self.allocated -= entry.size.allocated
