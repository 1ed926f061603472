"""The contract of all stores (core/recipes/ports.py). For a new kind of store, add a line to `STORES`."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.store.memory_store import MemoryStore
from tests.store.transports import sqlite_transport
from tests.store.transports.memory_transport import MemoryTransport
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import BlobMissing, RemoteRefused
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote import store as remote_store
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.kinds import open_transport
from trtbuild.store.transports.settings import RemoteSettings

#: A function that returns the value of a fixture, by the fixture's name.
GetFixture = Callable[[str], Any]


def remote(url: str) -> RemoteStore:
    return RemoteStore(open_transport(RemoteSettings("team", url)), "team", connections=4)


def sqlite(folder: Path, get_fixture: GetFixture) -> RemoteStore:
    """A remote of a kind that only tests have."""
    sqlite_transport.add_row(get_fixture("monkeypatch"))
    (folder / "share").mkdir(exist_ok=True)
    return remote(f"sqlite://{folder}/share/entries")


def layered(folder: Path) -> LayeredStore:
    team = remote(f"file://{folder}/share")
    return LayeredStore(LocalStore(folder / "store"), [team], [team])


STORES: dict[str, Callable[[Path, GetFixture], Store]] = {
    "local": lambda folder, _: LocalStore(folder / "store"),
    "memory": lambda folder, _: MemoryStore(),
    "layered": lambda folder, _: layered(folder),
    "remote-memory": lambda folder, _: RemoteStore(MemoryTransport(), "team", connections=4),
    "file": lambda folder, _: remote(f"file://{folder}/share"),
    "nginx": lambda folder, get_fixture: remote(get_fixture("nginx").url_of("writer")),
    "s3": lambda folder, get_fixture: remote(get_fixture("s3")),
    "sqlite": sqlite,
}

#: Stores that write files into a directory that several users share.
IN_SHARED_DIRECTORIES = ("file", "sqlite")
#: Stores whose server refuses to replace a record.
NEVER_REPLACE = ("nginx",)

MIB = 1 << 20
ABSENT = "ab" * 32
# A blob of more than 1 MiB is split into chunks.
SIZES = [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path, request.getfixturevalue)
    yield opened
    if isinstance(opened, LayeredStore | RemoteStore):
        opened.close()


@pytest.fixture
def can_replace(request: pytest.FixtureRequest, store: Store) -> bool:
    """Whether the store can replace a record."""
    return request.node.callspec.params["store"] not in NEVER_REPLACE


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "random"])
def test_returns_put_bytes(store: Store, payload: Callable[[int, int], bytes], size: int, zeros: bool) -> None:
    data = bytes(size) if zeros else payload(1, size)
    output = store.put_bytes(data)
    assert output == Output(hashlib.sha256(data).hexdigest(), size)
    assert store.has(output.sha256)
    assert store.get_bytes(output.sha256) == data


@pytest.mark.parametrize("size", SIZES)
def test_put_file_and_put_bytes_give_the_same_blob(
    store: Store, payload: Callable[..., bytes], size: int, tmp_path: Path
) -> None:
    data = payload(2, size)
    (tmp_path / "in").write_bytes(data)
    output = store.put_file(str(tmp_path / "in"))
    assert output == store.put_bytes(data)
    store.copy_to(output.sha256, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data


def test_has_records_returns_existing_keys(store: Store) -> None:
    recipe = Recipe("engine", 1, (("a", 1),))
    store.put_record(Record(recipe, {"plan": store.put_bytes(b"plan")}))
    assert store.has_records([recipe.key, ABSENT]) == {recipe.key}
    assert store.has_records([]) == set()


def test_a_record_of_the_wanted_recipe_contains_this_recipe_object(store: Store) -> None:
    recipe = Recipe("engine", 1, (("a", {"b": [1, 0.5, None, "x"], "$c": b"bytes"}), ("d", "\ud83d\n")))
    provenance = {"recipe": {"stage": "other"}}  # a reader must not parse this text as the recipe
    store.put_record(Record(recipe, {"plan": store.put_bytes(b"plan")}, provenance))
    found = store.get_record(recipe.key, recipe)
    assert found is not None
    assert found.recipe is recipe
    other = Recipe("engine", 1, (("a", 2),))
    found = store.get_record(recipe.key, other)
    assert found is not None
    assert found.recipe.same_as(recipe), "the stored record is returned, not the wanted recipe"


def test_put_bytes_accepts_memoryviews(store: Store) -> None:
    output = store.put_bytes(memoryview(b"--payload--")[2:-2])
    assert store.get_bytes(output.sha256) == b"payload"


def test_copy_to_replaces_the_file_and_leaves_no_others(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out" / "plan"
    target.parent.mkdir()
    target.write_bytes(b"old")
    store.copy_to(store.put_bytes(b"new").sha256, str(target))
    assert target.read_bytes() == b"new"
    with pytest.raises(BlobMissing):
        store.copy_to(ABSENT, str(target))
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_copy_to_a_missing_folder_raises(store: Store, tmp_path: Path) -> None:
    output = store.put_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        store.copy_to(output.sha256, str(tmp_path / "absent" / "plan"))


def test_put_file_raises_for_a_missing_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file(str(tmp_path / "absent"))


def test_a_missing_blob_raises_and_a_missing_record_is_none(store: Store) -> None:
    assert not store.has(ABSENT)
    assert store.get_record(ABSENT) is None
    with pytest.raises(BlobMissing):
        store.get_bytes(ABSENT)


def test_returns_a_put_record(store: Store, record_of: Callable[..., Record]) -> None:
    record = record_of(1, plan=store.put_bytes(b"plan"), info=store.put_bytes(bytes(3 * MIB)))
    assert store.put_record(record) == record
    assert store.get_record(record.recipe.key) == record


def test_stores_a_record_without_outputs(store: Store, record_of: Callable[..., Record]) -> None:
    record = record_of(1)
    store.put_record(record)
    assert store.get_record(record.recipe.key) == record


def test_stores_a_record_with_two_outputs_of_the_same_blob(store: Store, record_of: Callable[..., Record]) -> None:
    output = store.put_bytes(bytes(3 * MIB))
    record = record_of(1, plan=output, copy=output)
    store.put_record(record)
    assert store.get_record(record.recipe.key) == record


def test_rejects_a_record_whose_blob_is_missing(store: Store, record_of: Callable[..., Record]) -> None:
    record = record_of(1, plan=Output(ABSENT, 4))
    with pytest.raises(BlobMissing):
        store.put_record(record)
    assert store.get_record(record.recipe.key) is None


def test_records_are_write_once(store: Store, record_of: Callable[..., Record], can_replace: bool) -> None:
    first = record_of(1, plan=store.put_bytes(b"first"), who="winner")
    second = record_of(1, plan=store.put_bytes(b"second"), who="loser")
    store.put_record(first)
    assert store.put_record(second) == first
    assert store.get_record(first.recipe.key) == first
    assert store.put_record(second, replace=True) == (second if can_replace else first)
    assert store.get_record(first.recipe.key) == (second if can_replace else first)


def test_one_of_many_writers_wins(
    store: Store, record_of: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a thread may take longer between the two packets of its request than a store waits usually.
    monkeypatch.setattr(remote_store, "SETTLE_S", 2.0)
    plans = [store.put_bytes(f"plan {number}".encode()) for number in range(8)]
    results: list[Record] = []
    barrier = threading.Barrier(len(plans))

    def publish(plan: Output) -> None:
        barrier.wait()
        results.append(store.put_record(record_of(1, plan=plan)))

    threads = [threading.Thread(target=publish, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = store.get_record(results[0].recipe.key)
    assert results == [kept] * len(plans)
    assert store.put_record(record_of(1, plan=plans[0])) == kept, "a later writer gets the winner's record"


def test_replaces_a_record_of_another_recipe_under_the_same_key(
    store: Store, record_of: Callable[..., Record], can_replace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = record_of(1), record_of(2)
    monkeypatch.setattr(Recipe, "key", property(lambda self: "cd" * 32))
    store.put_record(first)
    with nullcontext() if can_replace else pytest.raises(RemoteRefused, match="does not let it be replaced"):
        assert store.put_record(second) == second
    assert store.get_record("cd" * 32) == (second if can_replace else first)


def test_sessions_nest(store: Store) -> None:
    with store.session(), store.session():
        output = store.put_bytes(b"x")
    assert store.get_bytes(output.sha256) == b"x"


def test_only_one_thread_at_a_time_builds_a_key(store: Store) -> None:
    inside, largest = 0, 0
    guard = threading.Lock()

    def build() -> None:
        nonlocal inside, largest
        for _ in range(20):
            with store.building(ABSENT):
                with guard:
                    inside += 1
                    largest = max(largest, inside)
                time.sleep(0.001)  # so that the other threads run in the meantime
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert largest == 1


def test_different_keys_can_be_built_at_once(store: Store) -> None:
    with store.building("01" * 32), store.building("02" * 32):
        pass


def test_building_passes_errors_on_and_releases_the_lock(store: Store) -> None:
    for error in (OSError("mine"), ValueError("mine")):
        with pytest.raises(type(error), match="mine"), store.building(ABSENT):
            raise error
    with store.building(ABSENT):
        pass


@pytest.mark.parametrize("name", IN_SHARED_DIRECTORIES)
def test_the_group_of_a_shared_directory_may_use_all_entries(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, record_of: Callable[..., Record]
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o770)
    if os.geteuid() == 0:  # only root can choose a group of which it is not a member
        os.chown(share, -1, 4242)
    umask = os.umask(0o077)
    try:
        store = STORES[name](tmp_path, request.getfixturevalue)
        store.put_record(record_of(1, plan=store.put_bytes(bytes(3 * MIB))))
        assert isinstance(store, RemoteStore)
        store.close()
    finally:
        os.umask(umask)
    permissions = {(path.stat().st_mode & 0o060, path.stat().st_gid) for path in share.rglob("*")}
    assert permissions == {(0o060, share.stat().st_gid)}
