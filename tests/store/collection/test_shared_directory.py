"""Collection of a shared directory: its three steps, its limits, simultaneous use, and kills at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.transports.nginx import Nginx
from trtbuild.core.recipes.record import Output, Record
from trtbuild.core.recipes.trust import Signature, domain_key
from trtbuild.errors import BlobMissing, StoreUnavailable
from trtbuild.store.collection.shared_directory import DEFAULT_GRACE_S, MIN_GRACE_S, collect_directory
from trtbuild.store.remote.files import PUBLISHING_LIMIT_S
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.http import HttpTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust import action_result
from trtbuild.store.trust.action_result import ActionResult

HOUR, DAY, MIB = 3600.0, 86400.0, 1 << 20


def store_at(root: Path) -> RemoteStore:
    return RemoteStore(DirectoryTransport(RemoteSettings("team", f"file://{root}")), "team")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "share"


@pytest.fixture
def put(root: Path, record_of: Callable[..., Record], payload: Callable[..., bytes]) -> Callable[..., Record]:
    """A function that puts a record with its own plan, and moves the times of the new files back by `ago_s` seconds."""

    def make(number: int, *, ago_s: float = DAY, size: int = 100_000, data: bytes | None = None) -> Record:
        before = set(root.rglob("*"))
        store = store_at(root)
        record = store.put_record(record_of(number, plan=store.put_bytes(data or payload(number, size))))
        age(ago_s, [path for path in root.rglob("*") if path not in before and path.is_file()])
        return record

    return make


def age(seconds: float, paths: list[Path]) -> None:
    for path in paths:
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns - int(seconds * 1e9), status.st_mtime_ns - int(seconds * 1e9)))


def pass_time(root: Path, seconds: float) -> None:
    """Move all times in the directory into the past, by `seconds`."""
    age(seconds, [path for path in root.rglob("*") if path.is_file()])
    condemned = root / "gc" / "condemned"
    if condemned.exists():
        document = json.loads(condemned.read_bytes())
        document["since"] = {str(int(at) - int(seconds * 1e9)): names for at, names in document["since"].items()}
        condemned.write_text(json.dumps(document))
    for folder in root.glob("gc/hidden/*"):
        folder.rename(folder.with_name(str(int(folder.name) - int(seconds * 1e9))))


def path_of(root: Path, kind: str, name: str) -> Path:
    return root / kind / name[:2] / name


def files(root: Path, kind: str) -> set[str]:
    return {path.name for path in root.glob(f"{kind}/??/*")}


def du(root: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", str(root)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def present(root: Path, *records: Record) -> list[bool]:
    return [record.recipe.key in files(root, "ac") for record in records]


def damaged_records(root: Path) -> list[str]:
    """The keys of the records with missing or damaged files. Reading a record here does not count as use."""
    names = []
    for path in root.glob("ac/??/*"):
        status = path.stat()
        entry = ActionResult.from_bytes(path.read_bytes())
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        paths = {part.sha256: path_of(root, "cas", part.sha256) for _, part in entry.files}
        if not all(
            file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == name for name, file in paths.items()
        ):
            names.append(path.name)
    return names


def test_the_grace_is_longer_than_the_time_for_which_writers_trust_a_lookup() -> None:
    assert PUBLISHING_LIMIT_S < MIN_GRACE_S < DEFAULT_GRACE_S


def test_without_limits_removes_nothing(root: Path, put: Callable[..., Record]) -> None:
    put(1)
    before = files(root, "cas") | files(root, "ac")
    report = collect_directory(str(root))
    assert files(root, "cas") | files(root, "ac") == before
    assert (report.records_removed, report.blobs_removed, report.condemned, report.records_kept) == ((), 0, 0, 1)
    assert report.kept.allocated == du(root)


def test_removes_a_file_in_three_steps_with_a_grace_between_them(root: Path, put: Callable[..., Record]) -> None:
    kept = put(1)
    orphan = store_at(root).put_bytes(b"of no record")
    path = path_of(root, "cas", orphan.sha256)
    assert collect_directory(str(root)).kept_because == {"in use": 1}, "the file was just written"
    assert collect_directory(str(root)).condemned == 0
    pass_time(root, 2 * HOUR)
    for _ in range(3):  # further collections within the grace period change nothing
        report = collect_directory(str(root))
        assert (report.condemned, report.blobs_removed) == (1, 0) and path.exists()
    pass_time(root, 2 * HOUR)
    for _ in range(3):
        report = collect_directory(str(root))
        assert (report.condemned, report.blobs_removed) == (1, 0) and not path.exists()
        assert report.condemned_size.allocated > 0
    pass_time(root, 2 * HOUR)
    report = collect_directory(str(root))
    assert (report.condemned, report.blobs_removed, report.blobs_kept) == (0, 1, 2)
    assert report.freed.allocated > 0 and list(root.glob("gc/hidden/*")) == []
    assert report.kept.allocated == du(root)
    assert store_at(root).get_record(kept.recipe.key) == kept and damaged_records(root) == []


def test_restores_a_hidden_file_that_a_record_names_again(
    root: Path, put: Callable[..., Record], record_of: Callable[..., Record]
) -> None:
    put(1)
    writer = store_at(root)
    orphan = writer.put_bytes(b"of no record yet")
    for _ in range(2):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root))
    assert not path_of(root, "cas", orphan.sha256).exists(), "the second collection hid the file"
    # A writer found the file before the collection hid it. The writer publishes a record, whose file is missing now.
    late = record_of(2, plan=orphan)
    document = writer.put_bytes(late.to_bytes())
    entry = action_result.record_entry(document, {orphan.sha256: (orphan,)})
    assert writer.transport.put("ac", late.recipe.key, entry.to_bytes(), once=True)
    assert damaged_records(root) == [late.recipe.key]
    found = writer.find(late.recipe.key)
    assert found is not None
    with pytest.raises(BlobMissing):
        writer.fetch_bytes(orphan.sha256, found.files_by_blob[orphan.sha256])
    pass_time(root, 2 * HOUR)
    report = collect_directory(str(root))
    assert (report.restored, report.blobs_removed, report.condemned) == (1, 0, 0)
    assert damaged_records(root) == [] and document.sha256 in files(root, "cas")
    assert writer.get_bytes(orphan.sha256) == b"of no record yet"


def test_keeps_the_new_copy_of_a_hidden_file(root: Path, put: Callable[..., Record]) -> None:
    orphan = store_at(root).put_bytes(b"bytes")
    for _ in range(2):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root))
    record = put(1, data=b"bytes", ago_s=0)
    pass_time(root, 2 * HOUR)
    collect_directory(str(root))
    assert damaged_records(root) == [] and present(root, record) == [True]
    assert path_of(root, "cas", orphan.sha256).exists() and list(root.glob("gc/hidden/*/*")) == []


def test_does_not_hide_a_file_that_a_writer_has_looked_up(root: Path) -> None:
    store = store_at(root)
    orphan = store.put_bytes(b"x")
    pass_time(root, 2 * HOUR)
    collect_directory(str(root))
    pass_time(root, 2 * HOUR)
    assert store.transport.has("cas", orphan.sha256)  # this marks the file as used
    report = collect_directory(str(root))
    assert path_of(root, "cas", orphan.sha256).exists() and report.kept_because == {"in use": 1}


def test_removes_the_least_recently_used_records_first(root: Path, put: Callable[..., Record]) -> None:
    records = [put(number, ago_s=DAY * (9 - number)) for number in range(5)]
    store_at(root).get_record(records[0].recipe.key)  # now this record is the most recently used
    report = collect_directory(str(root), max_size=du(root) - 150_000)  # 150,000 bytes are 1.5 plans
    assert report.records_removed == (records[1].recipe.key, records[2].recipe.key)
    assert present(root, *records) == [True, False, False, True, True]
    assert report.condemned == 4 and damaged_records(root) == []
    for _ in range(2):
        pass_time(root, 2 * HOUR)
        report = collect_directory(str(root))
        assert report.records_removed == ()
    assert report.blobs_removed == 4
    assert report.kept.allocated == du(root)
    for record in (records[0], *records[3:]):
        assert len(store_at(root).get_bytes(record.outputs["plan"].sha256)) == 100_000


def test_meets_the_size_limit_after_condemned_files_are_removed(root: Path, put: Callable[..., Record]) -> None:
    for number in range(6):
        put(number, ago_s=DAY * (number + 1))
    bound = du(root) // 2
    for _ in range(3):
        collect_directory(str(root), max_size=bound)
        pass_time(root, 2 * HOUR)
    assert bound * 0.6 < du(root) <= bound and damaged_records(root) == []


def test_entries_that_a_server_reads_count_as_used(root: Path, put: Callable[..., Record]) -> None:
    """nginx does not set times, but a file system with relatime updates the atime. The reads of a collection do
    not count as use."""
    read, unread = put(1, ago_s=9 * DAY), put(2, ago_s=5 * DAY)
    for _ in range(2):
        collect_directory(str(root), dry_run=True)
    assert path_of(root, "ac", read.recipe.key).stat().st_atime < time.time() - 8 * DAY
    path = path_of(root, "ac", read.recipe.key)
    os.utime(path, (time.time() - 2 * DAY, path.stat().st_mtime))
    collect_directory(str(root), max_age_s=4 * DAY)
    assert present(root, read, unread) == [True, False]


def test_keeps_records_younger_than_the_grace(root: Path, put: Callable[..., Record]) -> None:
    young, old = put(1, ago_s=HOUR / 2), put(2, ago_s=2 * HOUR)
    report = collect_directory(str(root), max_size=0, max_age_s=0)
    assert present(root, young, old) == [True, False]
    assert report.kept_because["in use"] == 1 and damaged_records(root) == []


def test_keeps_domain_entries_of_pinned_records(root: Path, put: Callable[..., Record]) -> None:
    pinned, other = put(1), put(2)
    entry = ActionResult.from_bytes(path_of(root, "ac", pinned.recipe.key).read_bytes())
    signature = Signature("ci", bytes(32), "release", "b", "2026-01-01T00:00:00Z", bytes(64))
    key_of_domain = domain_key("release", pinned.recipe.key)
    store_at(root).transport.put("ac", key_of_domain, ActionResult(entry.files, (signature,)).to_bytes(), once=True)
    pass_time(root, DAY)
    report = collect_directory(str(root), max_size=0, pinned=[pinned.recipe.key])
    assert files(root, "ac") == {pinned.recipe.key, key_of_domain}
    assert report.kept_because["pinned"] == 2 and report.records_removed == (other.recipe.key,)
    for _ in range(2):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root), max_size=0, pinned=[pinned.recipe.key])
    assert damaged_records(root) == [] and len(files(root, "cas")) == 2


def test_keeps_the_files_of_a_domain_entry(root: Path, put: Callable[..., Record]) -> None:
    record = put(1)
    path = path_of(root, "ac", domain_key("release", record.recipe.key))
    path.parent.mkdir(exist_ok=True)
    path_of(root, "ac", record.recipe.key).rename(path)
    for _ in range(3):
        pass_time(root, 2 * HOUR)
        report = collect_directory(str(root))
    assert report.records_kept == 1 and damaged_records(root) == [] and len(files(root, "cas")) == 2


def test_removes_unusable_records_after_the_grace(root: Path, put: Callable[..., Record]) -> None:
    unreadable, incomplete, intact = put(1, ago_s=0), put(2, ago_s=0), put(3, ago_s=0)
    path_of(root, "ac", unreadable.recipe.key).write_bytes(b"<html>")
    path_of(root, "cas", incomplete.outputs["plan"].sha256).unlink()
    assert collect_directory(str(root)).records_removed == ()
    pass_time(root, 2 * HOUR)
    assert set(collect_directory(str(root)).records_removed) == {unreadable.recipe.key, incomplete.recipe.key}
    assert present(root, intact) == [True] and damaged_records(root) == []


@pytest.mark.parametrize("size", [0, 4096, 200_000])
def test_removes_files_that_a_power_loss_truncated(root: Path, put: Callable[..., Record], size: int) -> None:
    """A server that never replaces a file cannot repair a truncated file. So a collection must remove the file."""
    truncated, intact = put(1), put(2)
    path = path_of(root, "cas", truncated.outputs["plan"].sha256)
    os.truncate(path, size)
    assert collect_directory(str(root)).records_removed == (truncated.recipe.key,)
    for _ in range(3):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root))
    assert not path.exists() and list(root.glob("gc/hidden/*")) == []
    assert present(root, truncated, intact) == [False, True] and damaged_records(root) == []


def test_a_record_with_a_wrong_size_does_not_affect_others(root: Path, put: Callable[..., Record]) -> None:
    record = put(1)
    plan = record.outputs["plan"]
    wrong_entry = action_result.list_entry("ab" * 32, [Output(plan.sha256, plan.size + 1)])
    store_at(root).transport.put("ac", "cd" * 32, wrong_entry.to_bytes(), once=True)
    for _ in range(4):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root))
    assert present(root, record) == [True] and damaged_records(root) == []


def test_keeps_an_empty_blob(root: Path, put: Callable[..., Record], record_of: Callable[..., Record]) -> None:
    store = store_at(root)
    record = store.put_record(record_of(1, plan=store.put_bytes(b"")))
    for _ in range(4):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root))
    assert damaged_records(root) == [] and present(root, record) == [True]


def test_a_dry_run_has_the_same_report_and_changes_nothing(root: Path, put: Callable[..., Record]) -> None:
    for number in range(4):
        put(number, ago_s=DAY * (number + 1))
    store_at(root).put_bytes(b"of no record")
    bound = du(root) // 2
    for _ in range(3):
        pass_time(root, 2 * HOUR)
        before = sorted(root.rglob("*"))
        dry = collect_directory(str(root), max_size=bound, dry_run=True)
        assert sorted(root.rglob("*")) == before
        real = collect_directory(str(root), max_size=bound)
        assert (dry.records_removed, dry.blobs_removed, dry.condemned, dry.freed) == (
            real.records_removed,
            real.blobs_removed,
            real.condemned,
            real.freed,
        )
        assert real.kept.allocated == du(root)


def test_removes_leftovers_after_the_grace(root: Path, put: Callable[..., Record]) -> None:
    put(1)
    (root / "tmp" / "0" / "01").mkdir(parents=True)  # nginx creates such folders
    old, young = root / "tmp" / "0" / "01" / "0000000001", root / "tmp" / "host-1-ab"
    old.write_bytes(b"x" * 9000)
    young.write_bytes(b"x")
    os.utime(old, (0, 0))
    report = collect_directory(str(root))
    assert report.leftovers_removed == 1 and not old.exists() and young.exists()
    assert report.kept.allocated == du(root)


def test_removes_directories_that_a_writer_did_not_finish(root: Path, put: Callable[..., Record]) -> None:
    put(1)
    unfinished = [root / ".host-1-ab", root / "tmp" / ".host-1-cd"]
    for folder in unfinished:
        folder.mkdir()
        os.utime(folder, (0, 0))
    (root / ".hidden").mkdir()
    (root / ".hidden" / "by somebody").write_bytes(b"x")
    os.utime(root / ".hidden", (0, 0))
    report = collect_directory(str(root))
    assert report.leftovers_removed == 2 and not any(folder.exists() for folder in unfinished)
    assert (root / ".hidden" / "by somebody").exists()


def test_a_directory_that_is_not_a_cache_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    with pytest.raises(StoreUnavailable, match="not a cache"):
        collect_directory(str(tmp_path), max_size=0)
    with pytest.raises(StoreUnavailable, match="not a cache"):
        collect_directory(str(tmp_path / "absent"), max_size=0)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_keeps_foreign_files(root: Path, put: Callable[..., Record], tmp_path: Path) -> None:
    put(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("ab" * 32)).write_bytes(b"x")
    link, foreign = root / "cas" / "ab" / ("ab" * 32), root / "cas" / "readme"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere / ("ab" * 32))
    foreign.write_bytes(b"x")
    for _ in range(4):
        pass_time(root, 2 * HOUR)
        collect_directory(str(root), max_size=0)
    assert link.is_symlink() and foreign.exists() and (elsewhere / ("ab" * 32)).exists()


@pytest.mark.parametrize("kind", ["ac", "cas"])
def test_refuses_to_collect_if_a_subdirectory_is_a_link(
    root: Path, put: Callable[..., Record], tmp_path: Path, kind: str
) -> None:
    """Otherwise the entries behind the link would count as missing. A collection would remove the files of missing records
    (`ac`), or the records of missing files (`cas`)."""
    record = put(1)
    name = record.recipe.key if kind == "ac" else record.outputs["plan"].sha256
    subdirectory = root / kind / name[:2]
    subdirectory.rename(tmp_path / "moved")
    subdirectory.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreUnavailable, match="cannot be listed"):
        collect_directory(str(root), max_size=0)
    assert path_of(root, "ac", record.recipe.key).exists() and (tmp_path / "moved" / name).exists()


def test_wrong_clocks_only_delay_removals(root: Path, put: Callable[..., Record]) -> None:
    record = put(1)
    orphan = store_at(root).put_bytes(b"x")
    year = 365 * DAY
    pass_time(root, 2 * HOUR)
    collect_directory(str(root))
    pass_time(root, -year)  # now all times are a year in the future, as if a clock were wrong
    collect_directory(str(root), max_size=0)
    assert present(root, record) == [True] and path_of(root, "cas", orphan.sha256).exists()
    pass_time(root, year)
    for _ in range(4):
        collect_directory(str(root))
        pass_time(root, 2 * HOUR)
    assert orphan.sha256 not in files(root, "cas") and damaged_records(root) == []
    assert list(root.glob("gc/hidden/*")) == []


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"schema":"x","since":{"1":["' + b"ab" * 32 + b'"]}}', b"\xff"])
def test_an_invalid_condemned_file_only_delays_removals(root: Path, put: Callable[..., Record], text: bytes) -> None:
    put(1)
    store_at(root).put_bytes(b"x")
    pass_time(root, 2 * HOUR)
    collect_directory(str(root))
    (root / "gc" / "condemned").write_bytes(text)
    report = collect_directory(str(root))
    assert report.condemned == 1 and len(files(root, "cas")) == 3


def test_collects_the_directory_of_an_nginx_server(
    nginx: Nginx, record_of: Callable[..., Record], payload: Callable[..., bytes]
) -> None:
    transport = HttpTransport(RemoteSettings("team", nginx.url_of("writer")))
    store = RemoteStore(transport, "team", connections=2)
    records = [
        store.put_record(record_of(number, plan=store.put_bytes(payload(number, 50_000)))) for number in range(3)
    ]
    orphan = store.put_bytes(b"of no record")
    path = path_of(nginx.root, "ac", records[0].recipe.key)
    pass_time(nginx.root, 9 * DAY)
    assert store.get_record(records[0].recipe.key) == records[0]
    assert path.stat().st_atime > time.time() - HOUR, "this file system updates the atime"
    for _ in range(3):
        report = collect_directory(str(nginx.root), max_age_s=8 * DAY)
        pass_time(nginx.root, 2 * HOUR)
    # These are two plans, the documents of two records, and `orphan`.
    assert report.blobs_removed == 5 and report.kept.allocated == du(nginx.root)
    assert [store.get_record(record.recipe.key) for record in records] == [records[0], None, None]
    assert store.get_bytes(records[0].outputs["plan"].sha256) == payload(0, 50_000)
    assert not store.has(orphan.sha256)
    store.close()
    later = RemoteStore(HttpTransport(RemoteSettings("team", nginx.url_of("writer"))), "team", connections=2)
    later.put_bytes(payload(1, 50_000))
    assert later.put_record(records[1]) == records[1]
    assert damaged_records(nginx.root) == []
    later.close()


class Killed(BaseException):
    """Raised instead of a change, as if the process were killed before this change."""


#: Functions of `os` that change something on the disk. The test kills collections before calls of these functions.
CHANGES = ("rename", "unlink", "rmdir", "mkdir", "link", "write", "fsync")


def test_a_collection_may_be_killed_before_any_change(
    root: Path, put: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collections are killed after 0, 1, 2, … calls of functions in `CHANGES`, until one completes. All records stay
    intact, and the next collection continues."""
    for number in range(3):
        put(number, ago_s=DAY * (number + 1), size=5_000)
    store_at(root).put_bytes(b"of no record")
    kill_count = 0
    for _ in range(4):
        pass_time(root, 2 * HOUR)
        for moment in range(200):
            calls = 0

            def killed_at_moment(real: Callable[..., Any], moment: int = moment) -> Callable[..., Any]:
                def call(*arguments: Any, **rest: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls > moment:  # all later changes fail, too: a killed process does not clean up
                        raise Killed
                    return real(*arguments, **rest)

                return call

            with monkeypatch.context() as patched:
                for name in CHANGES:
                    patched.setattr(os, name, killed_at_moment(getattr(os, name)))
                try:
                    collect_directory(str(root), max_age_s=2.5 * DAY)
                    break
                except Killed:
                    kill_count += 1
            assert damaged_records(root) == []
        else:
            pytest.fail("the collection did not end after 200 changes")
        assert damaged_records(root) == []
    assert kill_count > 25, "the collections were killed"
    # Two records are younger than the limit. Each has a document and a plan.
    assert len(files(root, "ac")) == 2 and len(files(root, "cas")) == 4
    assert list(root.glob("gc/hidden/*/*")) == []


COLLECTOR_PROGRAM = """
import sys
from trtbuild.store.collection.shared_directory import collect_directory
print("ready", flush=True)
while True:
    collect_directory(sys.argv[1], max_size=int(sys.argv[2]), grace_s=0.05)
"""


def test_a_collection_may_be_killed_by_sigkill(
    root: Path, put: Callable[..., Record], child: Callable[..., Any]
) -> None:
    moments = random.Random(3)
    for number in range(24):
        put(number, ago_s=DAY * (number + 1), size=3_000)
    initial_count = len(files(root, "cas"))
    for turn in range(12):
        if turn > 3 and len(files(root, "cas")) < initial_count:
            break  # at least four collections were killed, and one has hidden a file
        collector = child(COLLECTOR_PROGRAM, root, du(root) * 9 // 10)
        assert collector.read_line() == "ready"
        time.sleep(moments.uniform(0.0, 0.1))
        collector.kill()
        assert collector.process.returncode == -signal.SIGKILL
        assert damaged_records(root) == [], turn
    assert len(files(root, "cas")) < initial_count, "the collections hid something before they were killed"


WRITER_PROGRAM = """
import random, sys, time
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.remote.store import RemoteStore
settings, choices = RemoteSettings("team", "file://" + sys.argv[1]), random.Random(int(sys.argv[2]))
blobs = [b"blob %d" % n for n in range(8)]
end, hits, misses, builds = time.time() + float(sys.argv[3]), 0, 0, 0
while time.time() < end:
    store = RemoteStore(DirectoryTransport(settings), "team", connections=2)
    recipe = Recipe("engine", 1, (("n", choices.randrange(6)),))
    found = store.find(recipe.key)
    try:
        if found is not None:
            for sha256, parts in found.files_by_blob.items():
                store.fetch_bytes(sha256, parts)
            hits += 1
    except BlobMissing:
        found, misses = None, misses + 1
    if found is None:
        try:
            store.put_record(Record(recipe, {str(i): store.put_bytes(choices.choice(blobs)) for i in range(2)}))
            builds += 1
        except BlobMissing:
            misses += 1
    store.close()
print(hits, misses, builds)
"""


def test_readers_and_writers_run_at_the_same_time_as_collections(root: Path, child: Callable[..., Any]) -> None:
    """Writers use the same few blobs many times, while collections remove every file that is not in use. A removed file is
    a miss for its readers. In the end no record lacks a file."""
    store_at(root).put_bytes(b"creates the directory")
    duration_s = 2.0
    writers = [child(WRITER_PROGRAM, root, seed, duration_s) for seed in range(2)]
    removed, condemned = 0, 0
    while any(writer.process.poll() is None for writer in writers):
        report = collect_directory(str(root), max_size=0, grace_s=0.2)
        removed += len(report.records_removed) + report.blobs_removed
        condemned += report.condemned
        time.sleep(0.02)
    counts = [list(map(int, writer.finish().split())) for writer in writers]
    assert all(builds > 3 for _, _, builds in counts) and sum(hits for hits, _, _ in counts) > 10
    assert removed > 5 and condemned > 5
    collect_directory(str(root), grace_s=MIN_GRACE_S)
    assert damaged_records(root) == []
