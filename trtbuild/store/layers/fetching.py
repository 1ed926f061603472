"""Fetches complete records from a remote into a local store.

Rules
1. All fetches run within one session of the local store, so no collection removes a blob before its record is written.
2. The blobs of a record are fetched first, and their digests are verified. The record is published last. So a process
   that is killed leaves only complete records, and files that no record names.
3. A record that is complete in the local store is not requested from the remote, unless `trtbuild.lock` refuses it, or it
   is a pointer (`POINTER_STAGES`). A pointer leads to the last trace of the same files. So if the remote's pointer leads to
   another record, it replaces the local one. A file that is in the local store is not requested.
4. A blob that several records name is fetched once, because only one thread at a time fetches it (`NameLocks`).
5. An error of one record is reported, and the other records are still fetched. If the local store cannot be written, all
   fetches stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from trtbuild.core.recipes.lookup_recipes import POINTER_STAGES
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, RecordUntrusted, RemoteFault
from trtbuild.store.layers.remote_records import RefusalRule, refuse_no_record
from trtbuild.store.layers.sendable import read_complete_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import Found, RemoteStore

# The number of records that are fetched in parallel. The blobs of one record are fetched one after another.
_MAX_FETCHES = 8


@dataclass
class Fetched:
    """The results of `fetch_records`. Each list contains keys of records."""

    #: Records that were fetched.
    fetched: list[str] = field(default_factory=list)
    #: Records that were already complete in the local store.
    present: list[str] = field(default_factory=list)
    #: Records that are not in the remote, or whose blobs are not all there.
    missing: list[str] = field(default_factory=list)
    #: Records that this machine does not trust, or that the lock file refuses → the reason.
    untrusted: dict[str, str] = field(default_factory=dict)
    #: Records with another error → its text.
    failed: dict[str, str] = field(default_factory=dict)
    #: The size of the CAS files that were fetched for the records in `fetched`.
    bytes_moved: int = 0

    @property
    def finished_count(self) -> int:
        """The number of records with a result."""
        return sum(map(len, (self.fetched, self.present, self.missing, self.untrusted, self.failed)))


class NameLocks:
    """Locks by name: one thread at a time may hold a name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def hold(self, names: Iterable[str]) -> Iterator[None]:
        """Hold the locks of all `names`."""
        with self._lock:
            name_locks = [self._locks.setdefault(name, threading.Lock()) for name in sorted(set(names))]
        with ExitStack() as stack:
            for lock in name_locks:  # in sorted order, so that no deadlock is possible
                stack.enter_context(lock)
            yield


def fetch_records(
    remote: RemoteStore,
    keys: Iterable[str],
    local: LocalStore,
    report: Callable[[Fetched], None] = lambda _: None,
    lock_refusal: RefusalRule = refuse_no_record,
) -> Fetched:
    """Fetch the records with these `keys` from `remote` into `local`. `report` is called after each record, with the
    results so far.

    `lock_refusal` is the rule of the lock file: a remote's record that it refuses is not fetched, and a local record that
    it refuses is replaced. Raises StoreUnavailable. The records that were fetched before the error are complete.
    """
    result, name_locks = Fetched(), NameLocks()
    with local.session(), ThreadPoolExecutor(_MAX_FETCHES) as pool:
        keys_to_fetch: list[str] = []
        pointers: dict[str, Record] = {}
        for key in dict.fromkeys(keys):
            found = read_complete_record(local, key)
            if found is None or lock_refusal(key, found.record, False) is not None:
                keys_to_fetch.append(key)
                continue
            result.present.append(key)
            report(result)
            if found.record.recipe.stage in POINTER_STAGES:
                pointers[key] = found.record
        outdated = frozenset(_outdated_pointers(pointers, remote))
        keys_to_fetch += outdated
        result.present = [key for key in result.present if key not in outdated]
        keys_by_future = {
            pool.submit(_fetch_record, remote, key, local, name_locks, lock_refusal): key for key in keys_to_fetch
        }
        try:
            for future in as_completed(keys_by_future):
                _add_outcome(result, keys_by_future[future], future.result())
                report(result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return result


def _outdated_pointers(pointers: Mapping[str, Record], remote: RemoteStore) -> Iterator[str]:
    """Yield the keys of the local `pointers` for which the remote has a pointer to another record."""
    for key, found in remote.find_many(pointers):
        if isinstance(found, Found) and found.record.outputs != pointers[key].outputs:
            yield key


def _fetch_record(
    remote: RemoteStore, key: str, local: LocalStore, name_locks: NameLocks, lock_refusal: RefusalRule
) -> int | BlobMissing | RecordUntrusted | RemoteFault:
    """Fetch one record. Returns the number of bytes that were fetched, or the error."""
    fetched_size = 0
    try:
        found = remote.find(key)
        if found is None:
            return BlobMissing(f"the record is not in {remote.name}")
        if (why := lock_refusal(key, found.record, False)) is not None:
            return RecordUntrusted(why)
        for sha256, files in found.files_by_blob.items():
            with name_locks.hold([sha256]):
                if not local.has(sha256):
                    fetched_size += remote.fetch(sha256, files, local)
        local_copy = read_complete_record(local, key)
        is_replaced = local_copy is not None and (
            local_copy.record.recipe.stage in POINTER_STAGES or lock_refusal(key, local_copy.record, False) is not None
        )
        local.put_record_copy(found.record, found.document, found.signatures, replace=is_replaced)
    except (BlobMissing, RecordUntrusted, RemoteFault) as error:
        return error
    return fetched_size


def _add_outcome(result: Fetched, key: str, outcome: int | BlobMissing | RecordUntrusted | RemoteFault) -> None:
    if isinstance(outcome, int):
        result.fetched.append(key)
        result.bytes_moved += outcome
    elif isinstance(outcome, BlobMissing):
        result.missing.append(key)
    elif isinstance(outcome, RecordUntrusted):
        result.untrusted[key] = outcome.text
    else:
        result.failed[key] = outcome.text
