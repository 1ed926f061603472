"""Fetching complete records from a remote into a local store.

Rules
1. All fetches run within one session of the local store, so no collection removes a blob before its record is written.
2. The blobs of a record are result first, and each is compared with its name. The record is published last. So a process
   that is killed leaves only complete records, and files that no record names.
3. A record that is complete in the local store is not requested. A file that is in the local store is not requested either.
4. A blob that several records name is result once: a lock for each blob lets one thread at a time fetch it (`Turns`).
5. An error of one record is reported, and the other records are still result. If the local store cannot be written, all
   fetches stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from trtbuild.errors import BlobMissing, RecordUntrusted, RemoteFault
from trtbuild.store.layers.remote_records import Refuses, nothing
from trtbuild.store.layers.sendable import held
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

# The number of records that are result in parallel: most records are a few small files, result one after another.
_AT_ONCE = 8


@dataclass
class Fetched:
    """The results of fetching. Each list contains keys of records."""

    #: Records that were fetched.
    fetched: list[str] = field(default_factory=list)
    #: Records that were already complete in the local store.
    present: list[str] = field(default_factory=list)
    #: Records that are not in the remote, or have a blob that is not there.
    missing: list[str] = field(default_factory=list)
    #: Records that this machine does not trust → the reason.
    untrusted: dict[str, str] = field(default_factory=dict)
    #: Records with another error → its text.
    failed: dict[str, str] = field(default_factory=dict)
    #: The size of the CAS files that were fetched.
    bytes_moved: int = 0

    @property
    def done(self) -> int:
        """The number of records with a result."""
        return sum(map(len, (self.fetched, self.present, self.missing, self.untrusted, self.failed)))


class Turns:
    """Locks by name: one thread at a time may hold a name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    @contextmanager
    def of(self, names: Iterable[str]) -> Iterator[None]:
        """Hold all of `names`."""
        with self._lock:
            turns = [self._turns.setdefault(name, threading.Lock()) for name in sorted(set(names))]
        with ExitStack() as stack:
            for turn in turns:  # in sorted order, so that no deadlock is possible
                stack.enter_context(turn)
            yield


def fetch_records(
    remote: RemoteStore,
    keys: Iterable[str],
    local: LocalStore,
    report: Callable[[Fetched], None] = lambda _: None,
    refuses: Refuses = nothing,
) -> Fetched:
    """Fetch the records with these `keys` from `remote` into `local`. `report` is called with the results so far after each
    record. A local record is replaced if a lock file `refuses` it.

    Raises StoreUnavailable. The records that were fetched before the error are complete.
    """
    result, turns = Fetched(), Turns()
    with local.session(), ThreadPoolExecutor(_AT_ONCE) as pool:
        wanted = []
        for key in dict.fromkeys(keys):
            found = held(local, key)
            if found is None or refuses(key, found.record, False) is not None:
                wanted.append(key)
            else:
                result.present.append(key)
                report(result)
        running = {pool.submit(_fetch_one, remote, key, local, turns, refuses): key for key in wanted}
        try:
            for future in as_completed(running):
                _note(result, running[future], future.result())
                report(result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return result


def _fetch_one(
    remote: RemoteStore, key: str, local: LocalStore, turns: Turns, refuses: Refuses
) -> int | BlobMissing | RecordUntrusted | RemoteFault:
    """The number of bytes that were fetched, or the error."""
    moved = 0
    try:
        found = remote.find(key)
        if found is None:
            return BlobMissing(f"the record is not in {remote.name}")
        if (why := refuses(key, found.record, False)) is not None:
            return RecordUntrusted(why)
        for sha256, parts in found.parts.items():
            with turns.of([sha256]):
                if not local.has(sha256):
                    moved += remote.fetch(sha256, parts, local)
        own = held(local, key)
        refused = own is not None and refuses(key, own.record, False) is not None
        local.put_found(found.record, found.document, found.signatures, replace=refused)
    except (BlobMissing, RecordUntrusted, RemoteFault) as error:
        return error
    return moved


def _note(result: Fetched, key: str, outcome: int | BlobMissing | RecordUntrusted | RemoteFault) -> None:
    if isinstance(outcome, int):
        result.fetched.append(key)
        result.bytes_moved += outcome
    elif isinstance(outcome, BlobMissing):
        result.missing.append(key)
    elif isinstance(outcome, RecordUntrusted):
        result.untrusted[key] = outcome.text
    else:
        result.failed[key] = outcome.text
