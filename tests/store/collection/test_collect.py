"""Collection removes entries in the right order until limits are met, and never removes entries in use."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, StoreUnavailable
from trtbuild.store.collection.check import stats, verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

MIB = 1 << 20
DAY = 86400.0


def entry_paths(store: LocalStore) -> list[Path]:
    return [*store.root.glob("ac/??/*"), *store.root.glob("cas/??/*")]


@pytest.fixture
def put(local: LocalStore, record_of: Callable[..., Record], payload: Callable[..., bytes]) -> Callable[..., Record]:
    """A function that stores a record and its plan, both last used `days` days ago."""

    def make(number: int, *, days: float = 0.0, size: int = 2 * MIB) -> Record:
        before = {path: path.stat().st_mtime_ns for path in entry_paths(local)}
        record = local.put_record(record_of(number, plan=local.put_bytes(payload(number, size))))
        for path in entry_paths(local):
            used_ns = before.get(path, time.time_ns() - int(days * DAY * 1e9))
            os.utime(path, ns=(used_ns, used_ns))
        return record

    return make


def du(store: LocalStore) -> int:
    """The allocated size of all entries, as `du` counts it, without directories."""
    return sum(path.stat().st_blocks * 512 for path in entry_paths(store))


def present(store: LocalStore, *records: Record) -> list[bool]:
    """Whether each of `records` has an entry in ``ac/``."""
    keys = {path.name for path in store.root.glob("ac/??/*")}
    return [record.recipe.key in keys for record in records]


def test_without_limits_removes_nothing(local: LocalStore, put: Callable[..., Record]) -> None:
    put(1, days=3)
    report = collect(local)
    assert (report.records_removed, report.blobs_removed, report.records_kept) == ((), 0, 1)
    assert report.kept.allocated == du(local) == stats(local).allocated_bytes
    assert report.kept.apparent == stats(local).stored_bytes


def test_collects_an_empty_store(tmp_path: Path) -> None:
    assert collect(LocalStore(tmp_path / "store"), max_size=0).records_kept == 0


def test_removes_the_least_recently_used_records_first(local: LocalStore, put: Callable[..., Record]) -> None:
    records = [put(number, days=10 - number) for number in range(5)]
    before = du(local)
    local.get_record(records[0].recipe.key)  # now this record is the most recently used
    for output in records[0].outputs.values():
        local.has(output.sha256)
    bound = before * 3 // 5 + 10_000  # room for three of the five records
    report = collect(local, max_size=bound)
    assert report.records_removed == (records[1].recipe.key, records[2].recipe.key)
    assert present(local, *records) == [True, False, False, True, True]
    assert before - du(local) == report.freed.allocated
    assert report.kept.allocated == du(local) <= bound
    assert verify(local).damage == ()
    for record in records[3:]:
        assert len(local.get_bytes(record.outputs["plan"].sha256)) == 2 * MIB


def test_removes_records_that_are_too_old(local: LocalStore, put: Callable[..., Record]) -> None:
    records = [put(number, days=number) for number in (1, 5, 9)]
    collect(local, max_age_s=4 * DAY)
    assert present(local, *records) == [True, False, False]
    assert verify(local).damage == ()


def test_removes_everything_with_a_limit_of_zero(local: LocalStore, put: Callable[..., Record]) -> None:
    for number in range(3):
        put(number, days=1)
    collect(local, max_size=0)
    assert entry_paths(local) == []


def test_a_dry_run_has_the_same_report_and_changes_nothing(local: LocalStore, put: Callable[..., Record]) -> None:
    for number in range(4):
        put(number, days=1 + number)
    bound = du(local) // 2
    dry = collect(local, max_size=bound, dry_run=True)
    assert len(list(local.root.glob("ac/??/*"))) == 8, "four records, and the chunk lists of their plans"
    real = collect(local, max_size=bound)
    assert (dry.records_removed, dry.freed, dry.kept) == (real.records_removed, real.freed, real.kept)


def test_keeps_chunks_that_another_record_needs(
    local: LocalStore, record_of: Callable[..., Record], payload: Callable[..., bytes], age: Callable[..., None]
) -> None:
    common = payload(1, 4 * MIB)
    old = local.put_record(record_of(1, plan=local.put_bytes(common + b"old")))
    age(local, DAY)
    new = local.put_record(record_of(2, plan=local.put_bytes(common + b"new")))
    age(local, DAY)
    report = collect(local, max_size=du(local) - 1)
    assert report.records_removed == (old.recipe.key,)
    assert report.freed.allocated < MIB
    assert local.get_bytes(new.outputs["plan"].sha256) == common + b"new"
    assert not local.has(old.outputs["plan"].sha256)
    assert verify(local).damage == ()


def test_keeps_pinned_records(local: LocalStore, put: Callable[..., Record]) -> None:
    records = [put(number, days=5 - number) for number in range(3)]
    report = collect(local, max_size=0, pinned=[records[0].recipe.key])
    assert present(local, *records) == [True, False, False]
    assert report.kept_because["pinned"] == 1
    assert local.has(records[0].outputs["plan"].sha256)


def test_removes_unreferenced_blobs_unless_recently_used(local: LocalStore, age: Callable[..., None]) -> None:
    old = local.put_bytes(bytes(3 * MIB))
    age(local, DAY)
    new = local.put_bytes(b"new")
    report = collect(local)
    assert (local.has(old.sha256), local.has(new.sha256)) == (False, True)
    assert (report.lists_removed, report.blobs_removed, report.blobs_kept) == (1, 1, 1)
    assert report.kept_because == {"in use": 1}


def test_removes_unreadable_entries(local: LocalStore, put: Callable[..., Record]) -> None:
    record = put(1, days=9)
    path = local.root / "ac" / record.recipe.key[:2] / record.recipe.key
    path.chmod(0o644)
    path.write_bytes(b"{")
    os.utime(path, (0, 0))
    collect(local, max_age_s=DAY)
    assert entry_paths(local) == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_removes_nothing_when_the_machine_cannot_open_an_entry(
    local: LocalStore, put: Callable[..., Record], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise the record would stay, and the files that it names would be removed."""
    record = put(1, days=1)
    open_file = io.open

    def open_no_record(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(record.recipe.key):
            raise OSError(number, os.strerror(number), path)
        return open_file(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", open_no_record)
        with pytest.raises(StoreUnavailable):
            collect(local)
    assert all(local.has(output.sha256) for output in record.outputs.values())
    assert verify(local).damage == ()


def test_removes_old_entries_of_the_quarantine(local: LocalStore) -> None:
    local.put_bytes(b"x")
    old, new = f"cas-{'ab' * 32}-00000000", f"ac-{'cd' * 32}-11111111"
    for name, days in ((old, 8), (new, 6)):
        path = local.root / "quarantine" / name
        path.write_bytes(b"")
        os.utime(path, (time.time() - days * DAY,) * 2)
    assert collect(local).leftovers_removed == 1
    assert [path.name for path in (local.root / "quarantine").iterdir()] == [new]


def test_keeps_other_files_in_a_directory_that_was_there_before_the_store(tmp_path: Path) -> None:
    """The user has chosen a directory with other data, whose folders have the same names as those of a store."""
    names = ("tmp/report.txt", "locks/keys.txt", "sessions/monday", "quarantine/cas-7", "quarantine/old/letter")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("the user's")
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / "quarantine" / "old", (0, 0))
    store = LocalStore(tmp_path)
    store.put_bytes(b"x")
    assert collect(store).leftovers_removed == 0
    assert all((tmp_path / name).read_text() == "the user's" for name in names)


USER_PROGRAM = """
import sys
from trtbuild.store.local.local import LocalStore
store = LocalStore(sys.argv[1])
with store.session():
    print("ready", flush=True)
    sys.stdin.readline()
    assert store.has(sys.argv[2])
    assert store.get_record(sys.argv[3]) is not None
    unreferenced = store.put_bytes(b"not yet in a record")
    print("used", flush=True)
    sys.stdin.readline()
    assert len(store.get_bytes(sys.argv[2])) == 2 << 20
    assert store.get_bytes(unreferenced.sha256)
    print("read", flush=True)
    sys.stdin.readline()
"""


def test_keeps_entries_that_a_running_process_uses(
    local: LocalStore, put: Callable[..., Record], age: Callable[..., None], child: Callable[..., Any]
) -> None:
    used_blob, used_record, unused = (put(number, days=3) for number in range(3))
    user = child(USER_PROGRAM, local.root, used_blob.outputs["plan"].sha256, used_record.recipe.key)
    assert user.read_line() == "ready"
    user.send()
    assert user.read_line() == "used"
    time.sleep(0.05)  # so that the uses are older than the collection
    report = collect(local, max_size=0, slack_s=0)  # without slack, only the session protects entries
    assert present(local, used_blob, used_record, unused) == [False, True, False]
    assert report.kept_because["in use"] > 0
    assert not local.has(unused.outputs["plan"].sha256)
    assert verify(local).damage == ()
    user.send()
    assert user.read_line() == "read"
    user.send()
    user.finish()
    age(local, 10)  # more than the slack
    collect(local, max_size=0)
    assert entry_paths(local) == []


def test_a_parents_session_protects_entries_that_its_workers_use(
    local: LocalStore, put: Callable[..., Record], child: Callable[..., Any]
) -> None:
    record = put(1, days=3)
    code = (
        "import sys; from trtbuild.store.local.local import LocalStore; assert LocalStore(sys.argv[1]).has(sys.argv[2])"
    )
    with local.session():
        child(code, local.root, record.outputs["plan"].sha256).finish()
        time.sleep(0.05)  # so that the use is older than the collection
        collect(LocalStore(local.root), max_size=0, slack_s=0)
        assert present(local, record) == [False], "the worker has used only the blob"
        assert len(local.get_bytes(record.outputs["plan"].sha256)) == 2 * MIB


BUILDER_PROGRAM = """
import random, sys, time
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.store.local.local import LocalStore
store, choices = LocalStore(sys.argv[1]), random.Random(int(sys.argv[2]))
blobs = [b"small %d" % n for n in range(3)] + [bytes([n]) * (1 << 20) + b"tail" for n in range(3)]
end, rounds = time.time() + float(sys.argv[3]), 0
while time.time() < end:
    with store.session():
        number = choices.randrange(4)
        recipe = Recipe("engine", 1, (("n", number),))
        record = store.get_record(recipe.key)
        if record is None or not all(store.has(output.sha256) for output in record.outputs.values()):
            outputs = {str(i): store.put_bytes(choices.choice(blobs)) for i in range(3)}
            record = store.put_record(Record(recipe, outputs))
        assert store.get_record(recipe.key) is not None
        for output in record.outputs.values():
            assert store.has(output.sha256)
            store.get_bytes(output.sha256)  # raises BlobMissing if a collection has removed a blob in use
    rounds += 1
print(rounds)
"""


def test_builds_run_at_the_same_time_as_collections(tmp_path: Path, child: Callable[..., Any]) -> None:
    """Builders use the same few blobs many times, while collections remove every entry that is not in use."""
    duration_s = 2.0
    builders = [child(BUILDER_PROGRAM, tmp_path, seed, duration_s) for seed in range(2)]
    store, removed = LocalStore(tmp_path), 0
    while any(builder.process.poll() is None for builder in builders):
        report = collect(store, max_size=0, slack_s=0)
        removed += len(report.records_removed) + report.blobs_removed
    for builder in builders:
        assert int(builder.finish()) > 5, "each builder has had several rounds"
    assert removed > 5, "the collections removed entries meanwhile"
    assert verify(store).damage == ()


def test_rejects_a_record_whose_blob_was_collected(local: LocalStore, record_of: Callable[..., Record]) -> None:
    output = local.put_bytes(b"outside of a session")
    os.utime(local.root / "cas" / output.sha256[:2] / output.sha256, (0, 0))
    collect(local)
    with pytest.raises(BlobMissing):
        local.put_record(record_of(1, plan=output))
