"""Whole records, brought into a local store from a remote: so that nothing of them has to be asked for again.

Rules
1. Within one session of the local store: what comes is safe from collection until its record names it.
2. A record's blobs first, each compared with its name, and the record last, by the local store's own publication. So
   whoever is killed at any moment leaves whole records, and files that no record names.
3. A record that is here already, with all that it names, is not asked for. Neither is a file that is here.
4. A blob that several records name is brought once: records that are on their way at once take turns (`Turns`).
5. What goes wrong with one record is told, and stops no other. That the local store cannot be written stops all.
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

# Records that are on their way at once: most are a few small files, one after another.
_AT_ONCE = 8


@dataclass
class Brought:
    """What came of bringing records, by key."""

    #: Those that came, and those that were here before.
    came: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    #: Those that are not over there, or whose blobs are not.
    missing: list[str] = field(default_factory=list)
    #: Those that do not count for this machine → why not.
    untrusted: dict[str, str] = field(default_factory=dict)
    #: Those that something was wrong with → what.
    failed: dict[str, str] = field(default_factory=dict)
    #: Of files in ``cas/`` that came.
    bytes_moved: int = 0

    @property
    def done(self) -> int:
        """How many records there is an answer for."""
        return sum(map(len, (self.came, self.present, self.missing, self.untrusted, self.failed)))


class Turns:
    """One thread at a time for each name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    @contextmanager
    def of(self, names: Iterable[str]) -> Iterator[None]:
        """Held while something is done with all of `names`."""
        with self._lock:
            turns = [self._turns.setdefault(name, threading.Lock()) for name in sorted(set(names))]
        with ExitStack() as stack:
            for turn in turns:  # always in this order, so that no two threads wait for each other
                stack.enter_context(turn)
            yield


def bring(
    remote: RemoteStore,
    keys: Iterable[str],
    local: LocalStore,
    told: Callable[[Brought], None] = lambda brought: None,
    refuses: Refuses = nothing,
) -> Brought:
    """Bring the records with these `keys` from `remote` to `local`. `told` hears of the state after each. One that is here
    and that a lock file `refuses` is replaced.

    Raises StoreUnavailable; what came before is whole.
    """
    brought, turns = Brought(), Turns()
    with local.session(), ThreadPoolExecutor(_AT_ONCE) as pool:
        wanted = []
        for key in dict.fromkeys(keys):
            found = held(local, key)
            if found is None or refuses(key, found.record, False) is not None:
                wanted.append(key)
            else:
                brought.present.append(key)
                told(brought)
        running = {pool.submit(_bring_one, remote, key, local, turns, refuses): key for key in wanted}
        try:
            for future in as_completed(running):
                _note(brought, running[future], future.result())
                told(brought)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return brought


def _bring_one(
    remote: RemoteStore, key: str, local: LocalStore, turns: Turns, refuses: Refuses
) -> int | BlobMissing | RecordUntrusted | RemoteFault:
    """The bytes that came, or why the record did not."""
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
        here = held(local, key)
        refused = here is not None and refuses(key, here.record, False) is not None
        local.put_found(found.record, found.document, found.signatures, replace=refused)
    except (BlobMissing, RecordUntrusted, RemoteFault) as error:
        return error
    return moved


def _note(brought: Brought, key: str, result: int | BlobMissing | RecordUntrusted | RemoteFault) -> None:
    if isinstance(result, int):
        brought.came.append(key)
        brought.bytes_moved += result
    elif isinstance(result, BlobMissing):
        brought.missing.append(key)
    elif isinstance(result, RecordUntrusted):
        brought.untrusted[key] = result.text
    else:
        brought.failed[key] = result.text
