"""`fetch_records` fetches complete records, and each missing blob once. `file_reader` verifies files before an upload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, EntryCorrupt, RemoteDown
from trtbuild.store.collection.check import verify
from trtbuild.store.layers.fetching import fetch_records
from trtbuild.store.layers.sendable import file_reader, read_complete_record
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore

MIB = 1 << 20


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def remote(transport: MemoryTransport) -> RemoteStore:
    return RemoteStore(transport, "team", connections=4)


@pytest.fixture
def records(remote: RemoteStore, record_of: Callable[..., Record], payload: Callable[..., bytes]) -> list[Record]:
    """Eight records. All share one large blob, and each has its own small blob."""
    large = remote.put_bytes(payload(1, 3 * MIB))
    records = [
        remote.put_record(record_of(number, plan=large, info=remote.put_bytes(b"%d" % number))) for number in range(8)
    ]
    remote.close()
    return records


@pytest.fixture
def fresh_remote(transport: MemoryTransport, records: list[Record]) -> RemoteStore:
    """The same remote in a new `RemoteStore`, which remembers no earlier request."""
    transport.calls.clear()
    return RemoteStore(transport, "team", connections=4)


def keys_of(records: list[Record]) -> list[str]:
    return [record.recipe.key for record in records]


def request_counts(transport: MemoryTransport, kind: Kind) -> Counter[str]:
    """The number of requests for each entry of this kind, by name."""
    return Counter(name for method, entry_kind, name, _ in transport.calls if (method, entry_kind) == ("get", kind))


def test_fetches_a_shared_blob_once(
    fresh_remote: RemoteStore, transport: MemoryTransport, records: list[Record], local: LocalStore
) -> None:
    progress: list[int] = []
    result = fetch_records(fresh_remote, keys_of(records), local, lambda state: progress.append(state.finished_count))
    assert sorted(result.fetched) == sorted(keys_of(records))
    assert set(request_counts(transport, "cas").values()) == {1}
    assert progress == list(range(1, 9))
    assert [local.get_record(key) for key in keys_of(records)] == records
    assert verify(local).damage == ()


def test_does_not_request_present_entries(
    fresh_remote: RemoteStore, transport: MemoryTransport, records: list[Record], local: LocalStore
) -> None:
    fetch_records(fresh_remote, keys_of(records), local)
    transport.calls.clear()
    second = fetch_records(fresh_remote, keys_of(records), local)
    assert sorted(second.present) == sorted(keys_of(records)) and second.bytes_moved == 0
    assert transport.calls == []


def test_reports_missing_records(
    fresh_remote: RemoteStore, transport: MemoryTransport, records: list[Record], local: LocalStore
) -> None:
    del transport.entries["ac", records[0].recipe.key]
    result = fetch_records(fresh_remote, [*keys_of(records), "0" * 64], local)
    assert sorted(result.missing) == sorted([records[0].recipe.key, "0" * 64])
    assert len(result.fetched) == 7
    assert read_complete_record(local, records[0].recipe.key) is None


def test_an_invalid_entry_fails_only_its_record(
    fresh_remote: RemoteStore, transport: MemoryTransport, records: list[Record], local: LocalStore
) -> None:
    transport.entries["ac", records[3].recipe.key] = b"<html>"
    result = fetch_records(fresh_remote, keys_of(records), local)
    assert list(result.failed) == [records[3].recipe.key] and len(result.fetched) == 7
    assert verify(local).damage == ()


def test_a_remote_that_is_down_fails_every_record(
    fresh_remote: RemoteStore,
    transport: MemoryTransport,
    records: list[Record],
    local: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def down(kind: Kind, name: str, limit: int, **_: object) -> bytes | None:
        raise RemoteDown("it is down")

    monkeypatch.setattr(transport, "get", down)
    result = fetch_records(fresh_remote, keys_of(records), local)
    assert set(result.failed.values()) == {"it is down"} and len(result.failed) == 8
    assert not list(local.root.glob("ac/*/*"))


def test_fetches_a_record_again_if_a_file_is_missing(
    fresh_remote: RemoteStore,
    transport: MemoryTransport,
    records: list[Record],
    local: LocalStore,
    entry_path: Callable[..., Path],
) -> None:
    fetch_records(fresh_remote, keys_of(records), local)
    info = records[5].outputs["info"].sha256
    entry_path(local, "cas", info).unlink()
    assert read_complete_record(local, records[5].recipe.key) is None
    second = fetch_records(fresh_remote, keys_of(records), local)
    assert second.fetched == [records[5].recipe.key] and len(second.present) == 7
    assert local.get_bytes(info) == b"5"


def test_verifies_bytes_before_they_are_sent(
    local: LocalStore, payload: Callable[..., bytes], entry_path: Callable[..., Path]
) -> None:
    read, output = file_reader(local), local.put_bytes(payload(1, 100))
    assert read(output) == payload(1, 100)
    path = entry_path(local, "cas", output.sha256)
    path.chmod(0o644)
    path.write_bytes(payload(2, 100))
    with pytest.raises(EntryCorrupt):
        read(output)
    assert not path.exists()
    with pytest.raises(BlobMissing):
        read(output)


def test_a_pointer_to_a_new_trace_replaces_the_local_pointer(
    remote: RemoteStore, local: LocalStore, record_of: Callable[..., Record]
) -> None:
    """A machine without torch imports the bundle of a release. The trace of the last release was made by another torch."""
    old = local.put_record(record_of(1, stage="trace-any", record=local.put_bytes(b"the trace of torch 2.5")))
    new = remote.put_record(record_of(1, stage="trace-any", record=remote.put_bytes(b"the trace of torch 2.6")))
    key = old.recipe.key
    assert fetch_records(remote, [key], local).fetched == [key]
    assert local.get_record(key) == new
    assert fetch_records(remote, [key], local).present == [key]
