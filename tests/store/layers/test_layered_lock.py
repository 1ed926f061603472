"""A store with a lock file uses only the record that the lock file names, even if other trusted records have its key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.record import Record
from trtbuild.errors import RecordUntrusted
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

RecordOf = Callable[..., Record]

RIGHT, WRONG = b"the locked plan", b"another plan"


class Lock:
    """Rejects every record whose plan is not `RIGHT`. With `tolerates_local`, it accepts another local record if no remote
    has the locked one."""

    def __init__(self, store: LayeredStore, *, tolerates_local: bool = False) -> None:
        self.locked = store.put_bytes(RIGHT)
        self.tolerates_local = tolerates_local
        store.lock_refusal = self.lock_refusal

    def lock_refusal(self, key: str, record: Record, is_last_resort: bool) -> str | None:
        if record.outputs["plan"] == self.locked or (is_last_resort and self.tolerates_local):
            return None
        return "its plan is not the locked one"


def layered(folder: Path, *transports: MemoryTransport) -> LayeredStore:
    remotes = [RemoteStore(transport, f"team{number}", connections=2) for number, transport in enumerate(transports)]
    return LayeredStore(LocalStore(folder), remotes, remotes)


@pytest.fixture
def teams(tmp_path: Path, record_of: RecordOf) -> tuple[MemoryTransport, MemoryTransport]:
    """Two remotes. Under the same key, the first has a wrong record, and the second has the locked record."""
    transports = MemoryTransport(), MemoryTransport()
    for number, (transport, plan) in enumerate(zip(transports, (WRONG, RIGHT), strict=True)):
        store = layered(tmp_path / f"writer{number}", transport)
        store.put_record(record_of(1, plan=store.put_bytes(plan), layers=store.put_bytes(b"layers")))
        store.finish()
        store.close()
    return transports


def put_wrong_record(store: LayeredStore, record_of: RecordOf) -> Record:
    """Put a record whose plan is `WRONG` into the local store."""
    return store.local.put_record(
        record_of(1, plan=store.local.put_bytes(WRONG), layers=store.local.put_bytes(b"layers"))
    )


@pytest.mark.parametrize("is_prefetched", [True, False])
@pytest.mark.parametrize("has_wrong_local_record", [True, False])
def test_finds_the_locked_record_behind_wrong_records(
    tmp_path: Path,
    teams: tuple[MemoryTransport, MemoryTransport],
    record_of: RecordOf,
    is_prefetched: bool,
    has_wrong_local_record: bool,
) -> None:
    store = layered(tmp_path / "mine", *teams)
    key = record_of(1).recipe.key
    if has_wrong_local_record:
        put_wrong_record(store, record_of)
    lock = Lock(store, tolerates_local=True)
    if is_prefetched:
        store.prefetch_records([key])
    found = store.get_record(key)
    assert found is not None and found.outputs["plan"] == lock.locked
    assert store.source_of(key) == "team1"
    for output in found.outputs.values():
        store.fetch([output.sha256])
    store.get_bytes(found.outputs["layers"].sha256)
    assert store.reports()[0].untrusted >= 1


def test_the_locked_record_replaces_a_wrong_local_record(
    tmp_path: Path, teams: tuple[MemoryTransport, MemoryTransport], record_of: RecordOf
) -> None:
    store = layered(tmp_path / "mine", teams[1])
    wrong = put_wrong_record(store, record_of)
    store.lock_refusal = lambda key, record, _: "no" if record.outputs["plan"] == wrong.outputs["plan"] else None
    found = store.get_record(wrong.recipe.key)
    assert found is not None
    store.fetch([found.outputs["plan"].sha256])
    kept = LocalStore(tmp_path / "mine").get_record(wrong.recipe.key)
    assert kept is not None and kept.outputs == found.outputs


def test_without_the_locked_record_raises_unless_the_lock_tolerates_a_local_record(
    tmp_path: Path, teams: tuple[MemoryTransport, MemoryTransport], record_of: RecordOf
) -> None:
    store = layered(tmp_path / "mine", teams[0])
    key = record_of(1).recipe.key
    lock = Lock(store)
    with pytest.raises(RecordUntrusted, match="its plan is not the locked one"):
        store.get_record(key)
    wrong = put_wrong_record(store, record_of)
    with pytest.raises(RecordUntrusted, match="its plan is not the locked one"):
        store.get_record(key)
    lock.tolerates_local = True
    found = store.get_record(key)
    assert found is not None and found.outputs == wrong.outputs
    assert store.source_of(key) == "local"


def test_the_winner_of_a_race_does_not_replace_the_locked_record(
    tmp_path: Path, teams: tuple[MemoryTransport, MemoryTransport], record_of: RecordOf
) -> None:
    store = layered(tmp_path / "mine", teams[0])
    lock = Lock(store)
    store.put_record(record_of(1, plan=lock.locked, layers=store.put_bytes(b"layers")), replace=True)
    store.finish()
    assert store.reports()[0].lost_races == 1, "the remote has kept its own record"
    kept = LocalStore(tmp_path / "mine").get_record(record_of(1).recipe.key)
    assert kept is not None and kept.outputs["plan"] == lock.locked


def test_counts_untrusted_records_while_another_thread_finds_one(
    tmp_path: Path, teams: tuple[MemoryTransport, MemoryTransport], record_of: RecordOf
) -> None:
    class SlowSet(set[tuple[str, str]]):
        """During an iteration over this set, another thread looks up a record."""

        def __iter__(self) -> Iterator[tuple[str, str]]:
            for item in super().__iter__():
                finder.start()
                finder.join(0.3)
                yield item

    store = layered(tmp_path / "reader", *teams)
    Lock(store)
    key = record_of(1, plan=store.put_bytes(RIGHT), layers=store.put_bytes(b"layers")).recipe.key
    found_records = store._found_records
    found_records._untrusted_records = SlowSet({("team0", "another key")})
    finder = threading.Thread(target=lambda: found_records.find(key))
    assert found_records.counts_of(store.readers[0])["untrusted"] == 1
    finder.join()
    found_records._untrusted_records = set(set.__iter__(found_records._untrusted_records))
    assert found_records.counts_of(store.readers[0])["untrusted"] == 2
