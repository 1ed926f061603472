"""A local store with remotes: the requests to each remote, the transferred bytes, and faults of remotes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BlobMissing, RemoteDown, RemoteFull, StoreUnavailable
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.layers.remote_blobs import SMALL_BLOB_SIZE
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote import files
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.trust import action_result

MIB = 1 << 20

#: A plan that is too large to be part of an entry.
PLAN = b"plan " * 2000

RecordOf = Callable[..., Record]
Payload = Callable[[int, int], bytes]


def layered(folder: Path, *transports: MemoryTransport) -> LayeredStore:
    """A local store in `folder`, in front of a remote for each transport: team0, team1 and so on."""
    remotes = [RemoteStore(transport, f"team{number}", connections=4) for number, transport in enumerate(transports)]
    return LayeredStore(LocalStore(folder), remotes, remotes)


@pytest.fixture
def team() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def machine_a(tmp_path: Path, team: MemoryTransport) -> LayeredStore:
    """The store of a machine with the remote `team`."""
    return layered(tmp_path / "machine_a", team)


@pytest.fixture
def machine_b(tmp_path: Path, team: MemoryTransport) -> LayeredStore:
    """The store of another machine with the same remote."""
    return layered(tmp_path / "machine_b", team)


def moved_bytes(team: MemoryTransport, method: str) -> int:
    """The number of bytes that the calls of a method have transferred."""
    return sum(size for called, _, _, size in team.calls if called == method)


def test_uploads_a_pointer_after_the_trace_that_it_leads_to(
    machine_a: LayeredStore, team: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pointer is a record that leads to another record. The record of the stage ``trace-any`` leads to a trace."""
    begun, may_continue = threading.Event(), threading.Event()
    publish = RemoteStore.publish

    def slow_publish(self: RemoteStore, found: Any, read: Any, **options: Any) -> Any:
        if found.record.recipe.stage == "trace":
            begun.set()
            assert may_continue.wait(10)
        return publish(self, found, read, **options)

    monkeypatch.setattr(RemoteStore, "publish", slow_publish)
    trace, pointer, lower = (Recipe(stage, 1, (("a", 1),)) for stage in ("trace", "trace-any", "lower"))
    for recipe in (trace, pointer, lower):
        machine_a.put_record(Record(recipe, {"x": machine_a.put_bytes(recipe.stage.encode())}))
    assert begun.wait(10)
    # The upload of the trace is blocked, and the pointer is sent at the end. Meanwhile, `lower` is sent.
    while len(machine_a.uploads._running_uploads()) > 1:
        time.sleep(0.005)
    may_continue.set()
    machine_a.finish()
    entries = [name for method, kind, name, _ in team.calls if (method, kind) == ("put", "ac")]
    assert entries == [lower.key, trace.key, pointer.key]


def test_another_machine_finds_a_record_that_a_machine_has_put(
    machine_a: LayeredStore, machine_b: LayeredStore, record_of: RecordOf, payload: Payload
) -> None:
    data = payload(1, 3 * MIB + 5)
    record = record_of(1, plan=machine_a.put_bytes(data), layers=machine_a.put_bytes(b"layers"))
    machine_a.put_record(record)
    machine_a.finish()
    found = machine_b.get_record(record.recipe.key)
    assert found is not None
    assert found.recipe.same_as(record.recipe)
    assert machine_b.source_of(record.recipe.key) == "team0"
    assert machine_b.has(record.outputs["plan"].sha256)
    assert machine_b.get_bytes(record.outputs["plan"].sha256) == data


def test_a_hit_transfers_only_the_record(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(payload(1, 2 * MIB)))
    machine_a.put_record(record)
    machine_a.finish()
    team.calls.clear()
    assert machine_b.get_record(record.recipe.key) is not None
    assert moved_bytes(team, "get") < 10_000
    assert machine_b.local.get_record(record.recipe.key) is None, "its blobs are not in the local store"


def test_a_record_with_all_blobs_is_stored_locally(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(
        1, plan=machine_a.put_bytes(payload(1, 2 * MIB)), layers=machine_a.put_bytes(payload(2, SMALL_BLOB_SIZE))
    )
    machine_a.put_record(record)
    machine_a.finish()
    assert machine_b.get_record(record.recipe.key) is not None
    machine_b.fetch([record.outputs["plan"].sha256])
    team.entries.clear()
    kept = machine_b.local.get_record(record.recipe.key)
    assert kept is not None, "the small blob was fetched after the plan, so the record is complete"
    assert machine_b.local.get_bytes(record.outputs["layers"].sha256) == payload(2, SMALL_BLOB_SIZE)


def test_does_not_download_an_unused_large_blob(
    machine_a: LayeredStore, machine_b: LayeredStore, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(
        1, small=machine_a.put_bytes(b"small"), large=machine_a.put_bytes(payload(1, SMALL_BLOB_SIZE + 1))
    )
    machine_a.put_record(record)
    machine_a.finish()
    machine_b.get_record(record.recipe.key)
    assert machine_b.get_bytes(record.outputs["small"].sha256) == b"small"
    assert not machine_b.local.has(record.outputs["large"].sha256)
    assert machine_b.has(record.outputs["large"].sha256)


def test_transfers_only_missing_chunks(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf, payload: Payload
) -> None:
    old = payload(1, 8 * MIB)
    new = old[: 3 * MIB] + payload(2, MIB) + old[4 * MIB :]
    for number, data in enumerate((old, new)):
        record = record_of(number, plan=machine_a.put_bytes(data))
        team.calls.clear()
        machine_a.put_record(record)
        machine_a.finish()
        sent = moved_bytes(team, "put")
        team.calls.clear()
        machine_b.get_record(record.recipe.key)
        assert machine_b.get_bytes(record.outputs["plan"].sha256) == data
        fetched = moved_bytes(team, "get")
    assert sent < 2.8 * MIB, "a changed MiB, and the chunks at its ends"
    assert fetched < 2.8 * MIB


def test_an_interrupted_download_continues_where_it_stopped(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(payload(1, 8 * MIB)))
    machine_a.put_record(record)
    machine_a.finish()
    (chunks,) = machine_b.readers[0].find(record.recipe.key).files_by_blob.values()  # type: ignore[union-attr]
    removed = team.entries.pop(("cas", chunks[-1].sha256))
    machine_b.get_record(record.recipe.key)
    with pytest.raises(BlobMissing):
        machine_b.get_bytes(record.outputs["plan"].sha256)
    team.entries["cas", chunks[-1].sha256] = removed
    team.calls.clear()
    reopened = layered(machine_b.local.root, team)
    reopened.get_record(record.recipe.key)
    assert reopened.get_bytes(record.outputs["plan"].sha256) == payload(1, 8 * MIB)
    assert moved_bytes(team, "get") < 2 * MIB


def test_reports_a_removed_blob_as_missing(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    machine_b.get_record(record.recipe.key)
    sha256 = record.outputs["plan"].sha256
    del team.entries["cas", sha256]
    assert machine_b.has(sha256), "the record names the blob"
    with pytest.raises(BlobMissing):
        machine_b.get_bytes(sha256)
    assert not machine_b.has(sha256)
    assert machine_b.reports()[0].blobs_gone == 1


def test_a_blob_of_a_remote_that_is_down_is_not_reported_as_removed(
    tmp_path: Path, team: MemoryTransport, machine_a: LayeredStore, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    sha256, requests = record.outputs["plan"].sha256, []

    class DownForBlob(MemoryTransport):
        def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
            if name == sha256:
                requests.append(name)
                raise RemoteDown("for the test")
            return super().get(kind, name, limit, timed=timed)

    remote = DownForBlob()
    remote.entries = team.entries
    machine = layered(tmp_path / "machine", remote)
    assert machine.get_record(record.recipe.key) is not None
    with pytest.raises(BlobMissing):
        machine.get_bytes(sha256)
    assert requests, "the remote was not asked for the blob"
    assert not machine.has(sha256), "the next plan of this run must build the blob again"
    assert machine.reports()[0].blobs_gone == 0


class Damaging(MemoryTransport):
    """A transport that applies `damage` to everything that it returns."""

    def __init__(self, damage: Callable[[Kind, str, bytes], bytes]) -> None:
        super().__init__()
        self._damage = damage
        self.damaged = 0

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        data = super().get(kind, name, limit, timed=timed)
        changed = None if data is None else self._damage(kind, name, data)
        self.damaged += changed != data
        return changed


@pytest.mark.parametrize("damaged_kind", ["cas", "ac"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"<html><body>Sign in</body></html>",
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b" x",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["html", "empty", "short", "long", "flipped"],
)
def test_a_damaged_remote_entry_counts_as_missing(
    tmp_path: Path, record_of: RecordOf, damaged_kind: Kind, damage: Callable[[bytes], bytes]
) -> None:
    team = Damaging(lambda kind, name, data: damage(data) if kind == damaged_kind else data)
    machine_a, machine_b = layered(tmp_path / "machine_a", team), layered(tmp_path / "machine_b", team)
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    found = machine_b.get_record(record.recipe.key)
    # An entry names the record's document, and also contains the bytes of a small document.
    if damaged_kind == "ac":
        assert found is None
    else:
        assert found is not None, "the document is part of the entry"
        with pytest.raises(BlobMissing):
            machine_b.get_bytes(record.outputs["plan"].sha256)
    assert team.damaged


def test_does_not_use_chunks_in_a_wrong_order(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(payload(1, 3 * MIB)))
    machine_a.put_record(record)
    machine_a.finish()
    key = record.recipe.key
    entry = action_result.ActionResult.from_bytes(team.entries["ac", key])
    document = entry.document
    (blob,) = entry.blobs()
    chunks = entry.blobs()[blob]
    assert document is not None
    forged = action_result.record_entry(document, {blob: (chunks[1], chunks[0], *chunks[2:])})
    team.entries["ac", key] = forged.to_bytes()
    assert machine_b.get_record(key) is not None
    with pytest.raises(BlobMissing):
        machine_b.get_bytes(blob)
    assert not machine_b.local.has(blob)
    assert not machine_b.has(blob)


@pytest.mark.parametrize(
    "wrong_outputs",
    [
        {"plan": Output("0" * 64, 1 << 50)},
        {"plan": Output("0" * 64, 7)},
    ],
    ids=["a petabyte", "seven bytes"],
)
def test_an_entry_that_does_not_match_its_record_is_a_miss(
    machine_a: LayeredStore,
    machine_b: LayeredStore,
    team: MemoryTransport,
    record_of: RecordOf,
    wrong_outputs: dict[str, Output],
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    text = Record(record.recipe, wrong_outputs).to_bytes()
    document = Output(hashlib.sha256(text).hexdigest(), len(text))
    team.entries["cas", document.sha256] = text
    blob = wrong_outputs["plan"].sha256
    for chunks in ((), (Output(blob, 4),), (Output(blob, 1 << 50),)):
        entry = action_result.record_entry(document, {blob: chunks} if chunks else {})
        team.entries["ac", record.recipe.key] = entry.to_bytes()
        assert machine_b.get_record(record.recipe.key) is None


def test_asks_remotes_in_order_and_uses_the_first_hit(tmp_path: Path, record_of: RecordOf) -> None:
    first, second = MemoryTransport(), MemoryTransport()
    both = layered(tmp_path / "both", first, second)
    only_second = layered(tmp_path / "second", second)
    record = record_of(1, plan=only_second.put_bytes(b"plan"))
    only_second.put_record(record)
    only_second.finish()
    assert both.get_record(record.recipe.key) is not None
    assert both.source_of(record.recipe.key) == "team1"
    assert [report.misses for report in both.reports()] == [1, 0]


def test_fetches_a_missing_blob_from_the_next_remote(tmp_path: Path, record_of: RecordOf) -> None:
    first, second = MemoryTransport(), MemoryTransport()
    filled = layered(tmp_path / "filled", first, second)
    record = record_of(1, plan=filled.put_bytes(PLAN))
    filled.put_record(record)
    filled.finish()
    second.calls.clear()
    both = layered(tmp_path / "both", first, second)
    assert both.get_record(record.recipe.key) is not None
    sha256 = record.outputs["plan"].sha256
    assert not second.calls, "the first remote has the record"
    del first.entries["cas", sha256]
    assert both.get_bytes(sha256) == PLAN
    assert [report.blobs_gone for report in both.reports()] == [1, 0]


def test_a_record_may_be_forgotten_while_its_remotes_are_listed(
    machine_a: LayeredStore, machine_b: LayeredStore, record_of: RecordOf
) -> None:
    """For example, one thread looks for a blob, while another one publishes a record that names the blob."""
    record = machine_a.put_record(record_of(1, plan=machine_a.put_bytes(PLAN)))
    machine_a.finish()
    assert machine_b.get_record(record.recipe.key) is not None
    found_records = machine_b._found_records
    remotes = found_records.remotes_with_blob(record.outputs["plan"].sha256)
    remote, _ = next(remotes)
    assert remote.name == "team0"
    found_records.forget_record(record.recipe.key)
    assert list(remotes) == []


class SlowCounter(Counter[str]):
    """A counter whose `+=` leaves time for other threads between reading and writing."""

    def __getitem__(self, name: str) -> int:
        count = super().__getitem__(name)
        time.sleep(0.02)
        return count


@pytest.mark.parametrize("fails", [False, True], ids=["sent", "not sent"])
def test_counts_every_record_that_several_threads_upload(
    tmp_path: Path, record_of: RecordOf, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    machine_a = layered(tmp_path / "machine_a", MemoryTransport())
    threads = Barrier(4)

    def send_now(remote: RemoteStore, key: str, **options: bool) -> bool:
        threads.wait(10)
        if fails:
            raise RemoteDown("for the test")
        return True

    monkeypatch.setattr(machine_a.uploads, "send_now", send_now)
    machine_a.uploads.sent, machine_a.uploads.not_sent = SlowCounter(), SlowCounter()
    for number in range(4):
        machine_a.put_record(record_of(number, plan=machine_a.put_bytes(PLAN)))
    machine_a.finish()
    report = machine_a.reports()[0]
    assert (report.records_sent, report.records_not_sent) == ((0, 4) if fails else (4, 0))


class Down(MemoryTransport):
    """A remote whose server answers no lookup: `get` and `has` raise RemoteDown."""

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        self.calls.append(("get", kind, name, 0))
        raise RemoteDown("the server does not answer")

    def has(self, kind: Kind, name: str) -> bool:
        self.calls.append(("has", kind, name, 0))
        raise RemoteDown("the server does not answer")


def test_skips_a_remote_that_is_down(tmp_path: Path, record_of: RecordOf) -> None:
    down, up = Down(), MemoryTransport()
    store, other = layered(tmp_path / "a", down, up), layered(tmp_path / "b", up)
    record = record_of(1, plan=other.put_bytes(b"plan"))
    other.put_record(record)
    other.finish()
    assert store.get_record(record.recipe.key) is not None
    own = record_of(2, plan=store.put_bytes(b"own plan"))
    store.put_record(own)
    store.finish()
    assert down.calls
    assert [report.records_not_sent for report in store.reports()] == [1, 0]
    assert layered(tmp_path / "c", up).get_record(own.recipe.key) is not None


def test_uses_the_engine_that_another_machine_stored_first(
    machine_a: LayeredStore, machine_b: LayeredStore, record_of: RecordOf
) -> None:
    first = record_of(1, who="b", plan=machine_b.put_bytes(b"plan of b"))
    assert machine_a.get_record(first.recipe.key) is None
    machine_b.put_record(first)
    machine_b.finish()
    won = machine_a.put_record(record_of(1, who="a", plan=machine_a.put_bytes(b"plan of a")))
    assert won.provenance["who"] == "b"
    assert machine_a.get_bytes(won.outputs["plan"].sha256) == b"plan of b"


class NoLargeFiles(MemoryTransport):
    """A remote that fails while it sends a large file in ``cas/``, for example over a line that is too slow for a plan."""

    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        data = super().get(kind, name, limit, timed=timed)
        if kind == "cas" and data is not None and len(data) >= len(PLAN):
            raise RemoteDown("hardly anything came")
        return data


def test_keeps_the_engine_that_it_has_built_if_the_other_machines_engine_cannot_be_fetched(
    tmp_path: Path, record_of: RecordOf
) -> None:
    team = NoLargeFiles()
    machine_b, machine_a = layered(tmp_path / "machine_b", team), layered(tmp_path / "machine_a", team)
    machine_b.put_record(record_of(1, who="b", plan=machine_b.put_bytes(PLAN)))
    machine_b.finish()
    kept = machine_a.put_record(record_of(1, who="a", plan=machine_a.put_bytes(b"plan of a")))
    assert machine_a.get_bytes(kept.outputs["plan"].sha256) == b"plan of a"
    assert machine_a.local.get_record(kept.recipe.key) == kept


def test_never_replaces_a_valid_engine_record_of_a_remote(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    first = record_of(1, who="b", plan=machine_b.put_bytes(b"plan"))
    machine_b.put_record(first)
    machine_b.finish()
    before = team.entries["ac", first.recipe.key]
    forced = machine_a.put_record(record_of(1, who="a", plan=machine_a.put_bytes(b"another plan")), replace=True)
    machine_a.finish()
    assert forced.provenance["who"] == "a"
    assert team.entries["ac", first.recipe.key] == before
    assert machine_a.reports()[0].lost_races == 1


def test_replaces_an_unusable_remote_entry(
    machine_a: LayeredStore, team: MemoryTransport, machine_b: LayeredStore, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    team.entries["ac", record.recipe.key] = b"{"
    machine_a.put_record(record)
    machine_a.finish()
    assert machine_b.get_record(record.recipe.key) is not None


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("stage", ["trace", "engine"])
def test_a_record_whose_results_cannot_be_read_is_replaced_in_the_remote(
    machine_a: LayeredStore,
    machine_b: LayeredStore,
    team: MemoryTransport,
    record_of: RecordOf,
    stage: str,
    is_local: bool,
) -> None:
    """The remote's record would otherwise win, and the next build would run the step again."""
    bad = record_of(1, stage=stage, plan=machine_a.put_bytes(b"not a plan"))
    machine_a.put_record(bad)
    machine_a.finish()
    key = bad.recipe.key
    assert machine_b.get_record(key) == bad
    if is_local:
        machine_b.get_bytes(bad.outputs["plan"].sha256)
        assert machine_b.local.get_record(key) == bad
        machine_b = layered(machine_b.local.root, team)
        assert machine_b.get_record(key) == bad
    machine_b.refuse_record(key)
    good = record_of(1, stage=stage, plan=machine_b.put_bytes(PLAN))
    assert machine_b.put_record(good, replace=True) == good
    machine_b.finish()
    assert machine_b.local.get_record(key) == good
    assert layered(machine_b.local.root.parent / "c", team).get_record(key) == good


def test_a_read_only_store_writes_nothing(
    machine_a: LayeredStore, team: MemoryTransport, tmp_path: Path, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    reader = layered(tmp_path / "reader", team)
    reader.begin_read_only()
    assert reader.get_record(record.recipe.key) is not None
    assert reader.get_bytes(record.outputs["plan"].sha256) == PLAN
    assert not (tmp_path / "reader").exists()


def test_looks_up_several_records_at_once(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    records = [record_of(number, plan=machine_a.put_bytes(PLAN)) for number in range(20)]
    for record in records[:10]:
        machine_a.put_record(record)
    machine_a.finish()
    machine_b.prefetch_records(record.recipe.key for record in records)
    team.calls.clear()
    found = [machine_b.get_record(record.recipe.key) for record in records]
    assert [record is not None for record in found] == [True] * 10 + [False] * 10
    assert not team.calls
    machine_a.put_record(records[15])
    machine_a.finish()
    assert machine_b.get_record(records[15].recipe.key) is not None, "a missing record is requested again"


def test_reads_from_remotes_if_the_local_store_cannot_be_written(
    machine_a: LayeredStore, team: MemoryTransport, tmp_path: Path, record_of: RecordOf, payload: Payload
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(payload(1, 2 * MIB)))
    machine_a.put_record(record)
    machine_a.finish()
    store = layered(Path("/proc/trtbuild-cache"), team)  # not even root can create a directory there
    with pytest.raises(StoreUnavailable):
        store.put_bytes(b"x")
    assert store.get_record(record.recipe.key) is not None
    sha256 = record.outputs["plan"].sha256
    store.copy_to(sha256, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == store.get_bytes(sha256) == payload(1, 2 * MIB)


class WriteOnce(MemoryTransport):
    """A remote that never replaces an entry, like nginx with the documented configuration."""

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        return super().put(kind, name, data, once=True)


def test_an_entry_whose_only_chunk_is_another_blob_is_a_miss(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    entry = action_result.ActionResult.from_bytes(team.entries["ac", record.recipe.key])
    zeros = bytes(len(PLAN))
    chunk = Output(hashlib.sha256(zeros).hexdigest(), len(zeros))
    team.entries["cas", chunk.sha256] = zeros
    blob = record.outputs["plan"].sha256
    # The entry says that the blob has one chunk, which has the blob's size.
    files = [(f"blob/{blob}/0", chunk) if path == f"blob/{blob}" else (path, file) for path, file in entry.files]
    team.entries["ac", record.recipe.key] = action_result.ActionResult(tuple(files)).to_bytes()
    assert machine_b.get_record(record.recipe.key) is None
    assert not machine_b.has(blob)


def test_does_not_use_records_of_a_write_only_remote(
    tmp_path: Path, team: MemoryTransport, record_of: RecordOf
) -> None:
    machine_b = layered(tmp_path / "machine_b", team)
    machine_b.put_record(record_of(1, who="b", plan=machine_b.put_bytes(b"plan of b")))
    machine_b.finish()
    machine_a = LayeredStore(LocalStore(tmp_path / "machine_a"), (), [RemoteStore(team, "dump")])
    own = machine_a.put_record(record_of(1, who="a", plan=machine_a.put_bytes(b"plan of a")))
    machine_a.finish()
    assert machine_a.reports()[0].lost_races == 1
    kept = machine_a.local.get_record(own.recipe.key)
    assert kept is not None and kept.provenance["who"] == "a"


@pytest.mark.parametrize("existing_entry", [b"{", None], ids=["invalid entry", "without its document"])
def test_a_failed_upload_is_not_reported_as_sent(
    tmp_path: Path, record_of: RecordOf, existing_entry: bytes | None
) -> None:
    team = WriteOnce()
    machine_a = layered(tmp_path / "machine_a", team)
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    without_document = action_result.record_entry(Output("0" * 64, 10), {}).to_bytes()
    team.entries["ac", record.recipe.key] = existing_entry or without_document
    machine_a.put_record(record)
    machine_a.finish()
    report = machine_a.reports()[0]
    assert (report.records_sent, report.records_not_sent) == (0, 1)


def test_uploads_a_blob_again_if_it_is_damaged_in_the_remote(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    record = record_of(1, plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    blob = record.outputs["plan"].sha256
    team.entries["cas", blob] = bytes(len(PLAN))
    assert machine_b.get_record(record.recipe.key) is not None
    with pytest.raises(BlobMissing):
        machine_b.get_bytes(blob)
    machine_b.put_bytes(PLAN)
    machine_b.put_record(record, replace=True)
    machine_b.finish()
    assert team.entries["cas", blob] == PLAN


def test_shares_the_engine_that_replaces_a_damaged_one(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, tmp_path: Path, record_of: RecordOf
) -> None:
    record = record_of(1, who="a", plan=machine_a.put_bytes(PLAN))
    machine_a.put_record(record)
    machine_a.finish()
    team.entries["cas", record.outputs["plan"].sha256] = bytes(len(PLAN))
    assert machine_b.get_record(record.recipe.key) is not None
    with pytest.raises(BlobMissing):
        machine_b.fetch([record.outputs["plan"].sha256])
    machine_b.put_record(record_of(1, who="b", plan=machine_b.put_bytes(b"another plan")), replace=True)
    machine_b.finish()
    third = layered(tmp_path / "third", team)
    found = third.get_record(record.recipe.key)
    assert found is not None and found.provenance["who"] == "b"
    assert third.get_bytes(found.outputs["plan"].sha256) == b"another plan"


class SlowTransport(MemoryTransport):
    def get(self, kind: Kind, name: str, limit: int, *, timed: bool = False) -> bytes | None:
        time.sleep(0.05)
        return super().get(kind, name, limit, timed=timed)


def test_several_threads_fetch_blobs_that_are_missing_locally(tmp_path: Path, record_of: RecordOf) -> None:
    team = SlowTransport()
    machine_a = layered(tmp_path / "machine_a", team)
    blobs = [machine_a.put_bytes(bytes([number]) * (SMALL_BLOB_SIZE + 1)) for number in range(4)]
    record = record_of(1, **{f"o{number}": blob for number, blob in enumerate(blobs)})
    machine_a.put_record(record)
    machine_a.finish()
    reopened = layered(tmp_path / "machine_a", team)
    assert reopened.get_record(record.recipe.key) is not None
    for blob in blobs:
        (tmp_path / "machine_a" / "cas" / blob.sha256[:2] / blob.sha256).unlink()
    with ThreadPoolExecutor(len(blobs)) as pool:
        found = list(pool.map(lambda blob: reopened.get_bytes(blob.sha256), blobs))
    assert [data[0] for data in found] == [0, 1, 2, 3]
    assert reopened.source_of(record.recipe.key) == "team0"


def test_keeps_the_contents_of_entries_in_memory_up_to_a_limit(
    machine_a: LayeredStore, machine_b: LayeredStore, record_of: RecordOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_CONTENTS_SIZE", 1000)
    records = [record_of(number, note=machine_a.put_bytes(b"%d" % number * 500)) for number in range(9)]
    for record in records:
        machine_a.put_record(record)
    machine_a.finish()
    for record in records:
        assert machine_b.get_record(record.recipe.key) is not None
        assert machine_b.get_bytes(record.outputs["note"].sha256)
    contents = machine_b.readers[0]._files._contents
    assert 0 < sum(map(len, contents.values())) <= 1000


def test_a_forced_package_replaces_the_package_in_the_remote(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    old = machine_b.put_record(record_of(1, stage="package", index=machine_b.put_bytes(b"of the engine of b")))
    machine_b.finish()
    new = machine_a.put_record(
        record_of(1, stage="package", index=machine_a.put_bytes(b"of the engine of a")), replace=True
    )
    machine_a.finish()
    assert machine_a.local.get_record(new.recipe.key) == new
    third = layered(machine_b.local.root.parent / "third", team)
    found = third.get_record(old.recipe.key)
    assert found is not None and found.outputs == new.outputs


def test_keeps_its_own_package_if_the_package_in_the_remote_cannot_be_replaced(
    tmp_path: Path, record_of: RecordOf
) -> None:
    team = WriteOnce()
    machine_b, machine_a = layered(tmp_path / "machine_b", team), layered(tmp_path / "machine_a", team)
    machine_b.put_record(record_of(1, stage="package", index=machine_b.put_bytes(b"of the engine of b")))
    machine_b.finish()
    new = machine_a.put_record(
        record_of(1, stage="package", index=machine_a.put_bytes(b"of the engine of a")), replace=True
    )
    machine_a.finish()
    assert machine_a.local.get_record(new.recipe.key) == new


def test_a_pointer_to_a_new_trace_replaces_the_pointer_in_the_remote(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    """The old trace is of another version of torch. A machine without torch uses the last trace of the same files."""
    old = machine_b.put_record(record_of(1, stage="trace-any", record=machine_b.put_bytes(b"trace of torch 2.5")))
    machine_b.finish()
    new = machine_a.put_record(
        record_of(1, stage="trace-any", record=machine_a.put_bytes(b"trace of torch 2.6")), replace=True
    )
    machine_a.finish()
    third = layered(machine_b.local.root.parent / "third", team)
    found = third.get_record(old.recipe.key)
    assert found is not None and found.outputs == new.outputs
    assert machine_a.reports()[0].lost_races == 0


def test_a_failed_build_does_not_replace_the_pointer_in_the_remote(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    """The pointer of the failed build leads to a trace without engines."""
    old = machine_b.put_record(record_of(1, stage="trace-any", record=machine_b.put_bytes(b"the old trace")))
    machine_b.finish()
    for number in (1, 2):
        pointer = record_of(number, stage="trace-any", record=machine_a.put_bytes(b"the new trace"))
        machine_a.put_record(pointer, replace=True)
    machine_a.finish(keeps_pointers=True)
    third = layered(machine_b.local.root.parent / "third", team)
    assert third.get_record(old.recipe.key) == old
    assert third.get_record(pointer.recipe.key) == pointer, "a first pointer is sent"


def test_keeps_its_own_pointer_if_the_pointer_in_the_remote_cannot_be_replaced(
    tmp_path: Path, record_of: RecordOf
) -> None:
    """The pointer in the remote leads to a trace that this machine does not have."""
    team = WriteOnce()
    machine_b, machine_a = layered(tmp_path / "machine_b", team), layered(tmp_path / "machine_a", team)
    machine_b.put_record(record_of(1, stage="trace-any", record=machine_b.put_bytes(b"trace of torch 2.5")))
    machine_b.finish()
    new = machine_a.put_record(
        record_of(1, stage="trace-any", record=machine_a.put_bytes(b"trace of torch 2.6")), replace=True
    )
    machine_a.finish()
    assert machine_a.local.get_record(new.recipe.key) == new


class Full(MemoryTransport):
    """A remote that takes no more large files."""

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        if len(data) >= len(PLAN):
            raise RemoteFull("no space is left")
        return super().put(kind, name, data, once=once)


def test_a_pointer_is_not_sent_if_another_record_could_not_be_sent(tmp_path: Path, record_of: RecordOf) -> None:
    """A machine without torch can still use the old pointer, which leads to a trace in the remote."""
    team = Full()
    machine_b, machine_a = layered(tmp_path / "machine_b", team), layered(tmp_path / "machine_a", team)
    old = machine_b.put_record(record_of(1, stage="trace-any", record=machine_b.put_bytes(b"the old trace")))
    machine_b.finish()
    machine_a.put_record(record_of(2, stage="trace", weights=machine_a.put_bytes(PLAN)))
    machine_a.put_record(record_of(1, stage="trace-any", record=machine_a.put_bytes(b"the new trace")), replace=True)
    machine_a.finish()
    assert machine_a.reports()[0].records_not_sent == 2
    assert layered(tmp_path / "third", team).get_record(old.recipe.key) == old


class Stuck(MemoryTransport):
    """A remote whose uploads wait until `may_continue` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_continue = threading.Semaphore(0), threading.Event()

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        self.begun.release()
        assert self.may_continue.wait(30)
        return super().put(kind, name, data, once=once)


def test_a_lookup_does_not_wait_for_an_upload(tmp_path: Path, record_of: RecordOf, payload: Payload) -> None:
    team = Stuck()
    machine_a = layered(tmp_path / "machine_a", team)
    machine_a.put_record(record_of(1, stage="trace", plan=machine_a.put_bytes(payload(1, 16 * MIB))))
    for _ in range(4):
        assert team.begun.acquire(timeout=30), "all connections are busy with the upload"
    machine_a.prefetch_records([record_of(2).recipe.key])
    assert machine_a.uploads.unsent_count == 1
    team.may_continue.set()
    machine_a.finish()
    assert machine_a.reports()[0].records_sent == 1


def test_uploads_a_package_only_if_the_remote_has_its_engines(
    tmp_path: Path, team: MemoryTransport, record_of: RecordOf
) -> None:
    machine_b, machine_a = layered(tmp_path / "machine_b", team), layered(tmp_path / "machine_a", team)
    engine = machine_b.put_record(record_of(1, who="b", plan=machine_b.put_bytes(b"plan of b")))
    machine_b.finish()
    machine_a.put_record(record_of(1, who="a", plan=machine_a.put_bytes(b"plan of a")), replace=True)
    package = Record(
        Recipe("package", 1, (("engines", {"all@ada": engine.recipe.key}),)),
        {"index": machine_a.put_bytes(b"of plan of a")},
    )
    machine_a.put_record(package, replace=True)
    machine_a.finish()
    assert ("ac", package.recipe.key) not in team.entries
    machine_a.put_record(package, replace=True)
    machine_a.finish()
    assert ("ac", package.recipe.key) not in team.entries, "a second `finish` does not send it either"
    package_of_b = Record(package.recipe, {"index": machine_b.put_bytes(b"of plan of b")})
    machine_b.put_record(package_of_b, replace=True)
    machine_b.finish()
    found = layered(tmp_path / "third", team).get_record(package.recipe.key)
    assert found is not None and found.outputs == package_of_b.outputs


def test_a_record_that_cannot_be_read_locally_counts_as_not_sent(
    machine_a: LayeredStore, machine_b: LayeredStore, team: MemoryTransport, record_of: RecordOf
) -> None:
    record = machine_a.local.put_record(record_of(1, plan=machine_a.put_bytes(PLAN)))
    path = machine_a.local.root / "ac" / record.recipe.key[:2] / record.recipe.key
    entry = action_result.ActionResult.from_bytes(path.read_bytes())
    path.unlink()
    path.write_bytes(action_result.ActionResult(entry.files[:1]).to_bytes())  # only the document: the plan is missing
    machine_a.uploads.add(record.recipe.key)
    machine_a.finish()
    assert machine_a.reports()[0].records_not_sent == 1


def test_without_uploads_sends_nothing_and_reads_only_the_given_remotes(tmp_path: Path, record_of: RecordOf) -> None:
    first, second = MemoryTransport(), MemoryTransport()
    other = layered(tmp_path / "other", first)
    record = record_of(1, plan=other.put_bytes(PLAN))
    other.put_record(record)
    other.finish()
    both = layered(tmp_path / "both", first, second)
    with both.without_uploads(both.readers[1:]):
        assert both.get_record(record.recipe.key) is None
        both.put_record(record_of(2, plan=both.put_bytes(PLAN)))
    both.finish()
    assert not second.entries
    assert all(method == "get" for method, _, _, _ in second.calls)
    assert both.get_record(record.recipe.key) is not None
    both.put_record(record_of(3, plan=both.put_bytes(PLAN)))
    both.finish()
    assert ("ac", record_of(3).recipe.key) in second.entries


class LastWriteStays(MemoryTransport):
    """Like a WebDAV server: two simultaneous writers both get the answer "created", and the later entry stays."""

    decides_races = False

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2)
        self.created_count = 0

    def put(self, kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        if kind == "ac" and once and (kind, name) not in self.entries:
            self.barrier.wait(10)  # both writers have found no entry
            self.created_count += 1
            return super().put(kind, name, data, once=False)
        return super().put(kind, name, data, once=once)


def test_two_simultaneous_first_writers_end_with_one_engine(tmp_path: Path, record_of: RecordOf) -> None:
    team = LastWriteStays()
    stores = [layered(tmp_path / name, team) for name in ("a", "b")]

    def build(store: LayeredStore, who: str) -> None:
        store.put_record(record_of(1, who=who, plan=store.put_bytes(f"plan of {who}".encode())))
        store.finish()

    threads = [threading.Thread(target=build, args=(store, who)) for store, who in zip(stores, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert team.created_count == 2, "both writers got the answer that they have created the entry"
    key = record_of(1).recipe.key
    kept = [store.local.get_record(key) for store in stores]
    assert kept[0] is not None and kept[0] == kept[1]
    assert sum(store.reports()[0].lost_races for store in stores) == 1
    assert [store.get_bytes(kept[0].outputs["plan"].sha256) for store in stores] == [
        f"plan of {kept[0].provenance['who']}".encode()
    ] * 2
