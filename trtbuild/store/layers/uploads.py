"""Sending what was built to the remotes, beside the build.

Rules
1. Nothing waits for an upload but the end of the command (`finish`), and that as long as bytes move: what cannot be sent is
   counted and told, and is no failure of the build.
2. What is sent is the local store's entry as it is: the document's bytes and the signatures that it has there. Files are
   compared with their names first: damage here must not become write-once damage there.
3. Where a remote does not tell first writers apart, engines are looked at again at the end (records.py, rule 6), so one
   machine's engine is everybody's. Other records of a key are all alike, but for who made them.
4. A pointer is sent when what was given before it is there, or cannot be: nobody finds one that leads nowhere.
5. Records that this machine's policy does not trust are not sent, and neither are those that nobody else could
   (`Trust.for_others`).
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

# Entries that are looked at at once in the end.
_LOOKS = 8
# Records that are sent at once to a remote. Each of them uses all of the remote's connections for its files.
_AT_ONCE = 4

#: Called with a key and another's record that was there first.
Lost = Callable[[RemoteStore, Found], None]


class Uploads:
    """The records on their way to each of `remotes`."""

    def __init__(self, local: LocalStore, remotes: Sequence[RemoteStore], lost: Lost) -> None:
        self._local = local
        self._read = reading(local)
        #: Where what is added is sent.
        self.remotes = tuple(remotes)
        self._lost = lost
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._running: dict[Future[None], str] = {}
        self._given: set[tuple[str, str]] = set()
        # Engines that were first on a remote that does not decide, and when the last of them was.
        self._first: list[tuple[RemoteStore, Found]] = []
        self._last_s = 0.0
        #: Keys under which another's record was there first, with another engine.
        self.lost: set[str] = set()
        #: By remote: records that are there now, and those that could not be sent.
        self.sent: Counter[str] = Counter()
        self.not_sent: Counter[str] = Counter()

    def add(self, key: str, *, last: bool = False) -> None:
        """Send the local store's record under `key`, once; behind all that was given before, if it is to be the `last`."""
        for remote in self.remotes:
            with self._lock:
                if (remote.name, key) in self._given:
                    continue
                self._given.add((remote.name, key))
                pool = self._pools.get(remote.name)
                if pool is None:
                    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"upload-{remote.name}")
                    self._pools[remote.name] = pool
                # These have been begun when it is, so none of them waits for a thread that waits.
                before = [one for one, name in self._running.items() if name == remote.name] if last else []
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
            # Why is in the remote's report; what cannot be read here is found out by whoever needs it here. Whatever else
            # it is, the record is not there, and no build fails for that.
            self.not_sent[remote.name] += 1
        else:
            self.sent[remote.name] += sent

    def send_now(self, remote: RemoteStore, key: str) -> bool:
        """Send one record, and come back when it is there. False when it is none that others may have.

        Raises RemoteFault; BlobMissing or EntryCorrupt when it is not whole here; StoreUnavailable.
        """
        found = found_locally(self._local, key)
        found = None if found is None else for_others(found, remote.trust)
        if found is None:
            return False
        there = remote.publish(found, self._read)
        if there is found and not remote.decides and found.record.recipe.stage == "engine":
            with self._lock:
                self._first.append((remote, found))
                self._last_s = time.monotonic()
        self._compare(remote, found, there)
        return True

    def _compare(self, remote: RemoteStore, found: Found, there: Found) -> None:
        if there is not found and there.document != found.document:
            if there.record.outputs.get("plan") != found.record.outputs.get("plan"):
                self.lost.add(found.record.recipe.key)
            self._lost(remote, there)

    @property
    def waiting(self) -> int:
        """Records that are not there yet."""
        with self._lock:
            return len(self._running)

    def finish(self) -> None:
        """Come back when nothing is on its way any more, and races are decided (rule 3)."""
        while running := self._snapshot():
            wait(running, timeout=0.2)  # so that Ctrl-C is heard
        with self._lock:
            first, self._first = self._first, []
        if first:
            time.sleep(max(0.0, self._last_s + SETTLE_S - time.monotonic()))
            with ThreadPoolExecutor(_LOOKS, thread_name_prefix="settle") as pool:
                for _ in pool.map(lambda one: self._look_again(*one), first):
                    pass

    def _snapshot(self) -> set[Future[None]]:
        with self._lock:
            return set(self._running)

    def _look_again(self, remote: RemoteStore, found: Found) -> None:
        with suppress(RemoteFault):  # then it stays with what is here, which is as good
            self._compare(remote, found, remote.now_there(found))

    def close(self) -> None:
        """Drop what has not been begun. What is on its way is left to end by itself."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
