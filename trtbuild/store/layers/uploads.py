"""Sends new records to the remotes while the build runs.

Rules
1. The command waits for uploads only at its end (`finish`). A record that cannot be sent is counted and reported,
   and does not fail the build.
2. The bytes of a record's document are sent unchanged, with the signatures that may leave this machine. Before a file is
   sent, its SHA-256 is compared with its name, because some remotes do not allow the replacement of a damaged file.
3. Two machines may send an engine at once to a remote that does not decide which one it keeps. So each machine looks up the
   engine again at the end (store/remote/records.py, rule 6), and all machines use the engine that the remote has then. For
   other steps this is not necessary, because their records for one key differ only in their provenance.
4. A pointer is a record that leads to another record. Its upload (`last`) begins when the uploads of all records that were
   added earlier have ended. If a record could not be sent to the remote, the pointer is not sent either, because it
   would replace a pointer that can be used.
5. Records that this machine does not trust, and records that only this machine trusts, are not sent
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
from trtbuild.store.layers.sendable import file_reader, read_local_record, sendable_record
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.records import SETTLE_S, Found
from trtbuild.store.remote.store import RemoteStore

# The number of entries that are looked up in parallel at the end (rule 3).
_PARALLEL_LOOKUPS = 8
# The number of records that are sent in parallel to one remote. The files of a record use all connections of the remote.
_MAX_UPLOADS = 4

#: A function that is called with a remote and another machine's record, which the remote has kept.
LostRaceHandler = Callable[[RemoteStore, Found], None]


class Uploads:
    """Sends records to each of `remotes`."""

    def __init__(self, local: LocalStore, remotes: Sequence[RemoteStore], handle_lost_race: LostRaceHandler) -> None:
        self._local = local
        self._read = file_reader(local)
        self.remotes = tuple(remotes)
        self._handle_lost_race = handle_lost_race
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        #: Upload that has not ended → the name of its remote.
        self._running: dict[Future[None], str] = {}
        #: The (remote, key) pairs of all records that were added.
        self._added_records: set[tuple[str, str]] = set()
        # Engines that this machine has sent and that another machine may have replaced (rule 3), and the time when the last
        # of them was sent.
        self._undecided_engines: list[tuple[RemoteStore, Found]] = []
        self._last_undecided_s = 0.0
        #: SHA-256 of the documents of records that this machine cannot use. They are replaced in the remotes.
        self.refused_documents: set[str] = set()
        #: Keys under which a remote has another engine, from another machine.
        self.lost_keys: set[str] = set()
        #: Name of a remote → the number of records that were sent, and of those that could not be sent.
        self.sent: Counter[str] = Counter()
        self.not_sent: Counter[str] = Counter()

    def add(self, key: str, *, last: bool = False, keeps_pointers: bool = False) -> None:
        """Send the local record under `key`, once. With `last`, send it after all records that were added before. With
        `keeps_pointers`, the pointers in the remotes are not replaced."""
        for remote in self.remotes:
            with self._lock:
                if (remote.name, key) in self._added_records:
                    continue
                self._added_records.add((remote.name, key))
                pool = self._pools.get(remote.name)
                if pool is None:
                    pool = ThreadPoolExecutor(_MAX_UPLOADS, thread_name_prefix=f"upload-{remote.name}")
                    self._pools[remote.name] = pool
                # These uploads are already in the pool, before the upload that waits for them. So the waiting upload never
                # blocks them.
                earlier_uploads = (
                    [running for running, name in self._running.items() if name == remote.name] if last else []
                )
                future = pool.submit(self._send_after, remote, key, earlier_uploads, last, keeps_pointers)
                self._running[future] = remote.name
            future.add_done_callback(self._forget_upload)

    def _forget_upload(self, future: Future[None]) -> None:
        with self._lock:
            self._running.pop(future, None)

    def _send_after(
        self,
        remote: RemoteStore,
        key: str,
        earlier_uploads: Sequence[Future[None]],
        is_last: bool,
        keeps_pointers: bool,
    ) -> None:
        wait(earlier_uploads)
        with self._lock:
            if is_last and self.not_sent[remote.name]:  # rule 4
                self.not_sent[remote.name] += 1
                return
        try:
            is_sent = self.send_now(remote, key, keeps_pointers=keeps_pointers)
        except Exception:
            # No error of an upload makes the build fail. The remote's report contains its faults. An unreadable local entry
            # is reported by the step that reads it.
            with self._lock:
                self.not_sent[remote.name] += 1
        else:
            with self._lock:
                self.sent[remote.name] += is_sent

    def send_now(self, remote: RemoteStore, key: str, *, keeps_pointers: bool = False) -> bool:
        """Send one record, and wait until the remote has it. Returns False if the local store has no such record, or if
        other machines must not have it.

        Raises RemoteFault, RecordUntrusted, StoreUnavailable, and BlobMissing, EntryCorrupt, KeyError or ValueError when
        the local record is not complete.
        """
        found = read_local_record(self._local, key)
        found = None if found is None else sendable_record(found, remote.trust)
        if found is None:
            return False
        published = remote.publish(
            found, self._read, keeps_pointers=keeps_pointers, refused=frozenset(self.refused_documents)
        )
        if published is found and not remote.decides_races and found.record.recipe.stage == "engine":
            with self._lock:
                self._undecided_engines.append((remote, found))
                self._last_undecided_s = time.monotonic()
        self._note_lost_race(remote, found, published)
        return True

    def _note_lost_race(self, remote: RemoteStore, own: Found, published: Found) -> None:
        # A race is lost if the remote has kept another machine's record in place of `own`.
        if published is not own and published.document != own.document:
            if published.record.outputs.get("plan") != own.record.outputs.get("plan"):
                self.lost_keys.add(own.record.recipe.key)
            self._handle_lost_race(remote, published)

    @property
    def unsent_count(self) -> int:
        """The number of uploads that are not finished. A record counts once for each remote."""
        with self._lock:
            return len(self._running)

    def finish(self) -> None:
        """Wait until all uploads have ended, and then look up engines again (rule 3)."""
        while running := self._running_uploads():
            wait(running, timeout=0.2)  # the timeout is there so that Ctrl-C is noticed
        with self._lock:
            undecided, self._undecided_engines = self._undecided_engines, []
        if undecided:
            time.sleep(max(0.0, self._last_undecided_s + SETTLE_S - time.monotonic()))
            with ThreadPoolExecutor(_PARALLEL_LOOKUPS, thread_name_prefix="settle") as pool:
                for _ in pool.map(lambda upload: self._check_race_again(*upload), undecided):
                    pass

    def _running_uploads(self) -> set[Future[None]]:
        with self._lock:
            return set(self._running)

    def _check_race_again(self, remote: RemoteStore, found: Found) -> None:
        with suppress(RemoteFault):  # then this machine keeps its own engine
            self._note_lost_race(remote, found, remote.current_record(found))

    def close(self) -> None:
        """Cancel the uploads that have not begun. The others end by themselves."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
