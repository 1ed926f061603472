"""Uploads: new records are sent to the remotes while the build runs.

Rules
1. Only the end of the command waits for uploads (`finish`), as long as bytes are transferred. A record that cannot be sent
   is counted and reported, and does not fail the build.
2. The local store's entry is sent unchanged: the bytes of the document and the signatures. Before, each file is compared
   with its name, because a damaged file in a remote cannot be replaced.
3. If a remote does not decide between simultaneous writers, engines are looked up again at the end (records.py, rule 6), so
   that all machines use the same engine. Other records of a key differ only in their provenance.
4. A pointer is sent after all records that were added before it have been sent, or have failed. So no pointer leads to a
   missing record.
5. Records that this machine's policy does not trust are not sent. Records that only this machine trusts are not sent either
   (`Trust.sendable_signatures`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from trtbuild.errors import RemoteFault
from trtbuild.store.layers.sendable import for_others, found_locally, reading
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.records import SETTLE_S, Found
from trtbuild.store.remote.store import RemoteStore

# The number of entries that are looked up in parallel at the end (rule 3).
_PARALLEL_LOOKUPS = 8
# The number of records that are sent in parallel to one remote. Each uses all of the remote's connections for its files.
_AT_ONCE = 4

#: Called with a remote and another machine's record that was published first.
Lost = Callable[[RemoteStore, Found], None]


class Uploads:
    """Sends records to each of `remotes`."""

    def __init__(self, local: LocalStore, remotes: Sequence[RemoteStore], lost: Lost) -> None:
        self._local = local
        self._read = reading(local)
        self.remotes = tuple(remotes)
        self._lost = lost
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._running: dict[Future[None], str] = {}
        #: (remote, key) pairs.
        self._added: set[tuple[str, str]] = set()
        # Engines that seem to be the first in a remote that does not decide, and the time of the last upload of one.
        self._undecided: list[tuple[RemoteStore, Found]] = []
        self._last_undecided_s = 0.0
        #: Keys under which another machine has first published a record with another engine.
        self.lost: set[str] = set()
        #: By remote: records that were sent, and records that could not be sent.
        self.sent: Counter[str] = Counter()
        self.not_sent: Counter[str] = Counter()

    def add(self, key: str, *, last: bool = False) -> None:
        """Send the local store's record under `key`, once. With `last`, send it after all records that were added
        before."""
        for remote in self.remotes:
            with self._lock:
                if (remote.name, key) in self._added:
                    continue
                self._added.add((remote.name, key))
                pool = self._pools.get(remote.name)
                if pool is None:
                    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"upload-{remote.name}")
                    self._pools[remote.name] = pool
                # The records to wait for are in the pool already. So the waiting thread is never one that they need.
                before = [running for running, name in self._running.items() if name == remote.name] if last else []
                future = pool.submit(self._send, remote, key, before)
                self._running[future] = remote.name
            future.add_done_callback(self._done)

    def _done(self, future: Future[None]) -> None:
        with self._lock:
            self._running.pop(future, None)

    def _send(self, remote: RemoteStore, key: str, before: Sequence[Future[None]]) -> None:
        wait(before)
        try:
            sent = self.send_now(remote, key)
        except Exception:
            # The remote's report contains its faults. An unreadable local entry raises an error when a step reads it. Any
            # other error means that the record was not sent. None of these errors makes the build fail.
            self.not_sent[remote.name] += 1
        else:
            self.sent[remote.name] += sent

    def send_now(self, remote: RemoteStore, key: str) -> bool:
        """Send one record, and wait until the remote has it. Returns False if other machines must not have the record.

        Raises RemoteFault, StoreUnavailable, and BlobMissing or EntryCorrupt when the local record is not complete.
        """
        found = found_locally(self._local, key)
        found = None if found is None else for_others(found, remote.trust)
        if found is None:
            return False
        published = remote.publish(found, self._read)
        if published is found and not remote.decides and found.record.recipe.stage == "engine":
            with self._lock:
                self._undecided.append((remote, found))
                self._last_undecided_s = time.monotonic()
        self._compare(remote, found, published)
        return True

    def _compare(self, remote: RemoteStore, own: Found, published: Found) -> None:
        if published is not own and published.document != own.document:
            if published.record.outputs.get("plan") != own.record.outputs.get("plan"):
                self.lost.add(own.record.recipe.key)
            self._lost(remote, published)

    @property
    def waiting(self) -> int:
        """The number of records that are not sent yet."""
        with self._lock:
            return len(self._running)

    def finish(self) -> None:
        """Wait until all uploads have ended and races are decided (rule 3)."""
        while running := self._snapshot():
            wait(running, timeout=0.2)  # so that Ctrl-C is noticed
        with self._lock:
            undecided, self._undecided = self._undecided, []
        if undecided:
            time.sleep(max(0.0, self._last_undecided_s + SETTLE_S - time.monotonic()))
            with ThreadPoolExecutor(_PARALLEL_LOOKUPS, thread_name_prefix="settle") as pool:
                for _ in pool.map(lambda upload: self._look_again(*upload), undecided):
                    pass

    def _snapshot(self) -> set[Future[None]]:
        with self._lock:
            return set(self._running)

    def _look_again(self, remote: RemoteStore, found: Found) -> None:
        with suppress(RemoteFault):  # then this machine keeps its own engine
            self._compare(remote, found, remote.now_there(found))

    def close(self) -> None:
        """Cancel the uploads that have not begun. The others end by themselves."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
