"""Errors of the kernel: injected at the system calls that write, and real ones on full and on read-only disks.

`tests.faults.enumeration` describes how errors are injected. ``python -m tests.faults.enumeration error`` injects each
error at each call. These tests inject fewer errors, unless ``TRTBUILD_KILLS`` (the number of kills in `tests.faults.kills`)
is 100 or more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import make_read_only, mounted
from tests.faults.operations import LARGE, OPERATIONS, record
from tests.faults.remote_operations import REMOTE_OPERATIONS
from tests.faults.syscalls import outcome_of, traced
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreUnavailable
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

#: The largest number of injected errors for each operation. If an operation has more pairs (call, error), no call gets more
#: than one error. If it also has more calls, only evenly spread calls get an error.
MAX_ERRORS = 10**6 if int(os.environ.get("TRTBUILD_KILLS", "16")) >= 100 else 17


@pytest.mark.parametrize("operation", [*OPERATIONS, *REMOTE_OPERATIONS])
def test_reports_or_survives_an_error_of_a_writing_call(operation: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.faults.enumeration", "error", operation, "--at-most", str(MAX_ERRORS)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.stdout, process.stderr[-4000:]
    document = json.loads(process.stdout)
    (tally,) = document["tallies"]
    assert tally["findings"] == []
    assert document["total"] >= min(15, tally["calls"]), "the errors were injected"
    assert tally["outcomes"].keys() - {"result"}, "some errors were reported"


@pytest.mark.parametrize("data", [b"small" * 1000, LARGE], ids=["small", "chunked"])
def test_the_next_read_detects_a_lost_write(tmp_path: Path, data: bytes) -> None:
    """The kernel reports success for a write whose bytes never reach the disk."""
    LocalStore(tmp_path / "store").put_bytes(b"so that the directories are there")

    def put(place: Path) -> object:
        return LocalStore(place / "store").put_bytes(data).sha256

    # strace replaces the first call of `write` by a call without effect, and returns 4096.
    outcome = traced(put, tmp_path, "write:retval=4096:when=1")
    assert outcome.tampered and "result" in outcome.report
    store = LocalStore(tmp_path / "store")
    assert len(verify(store, quarantine=False).damage) >= 1
    with pytest.raises((EntryCorrupt, BlobMissing)):
        store.get_bytes(outcome.report["result"])
    assert store.get_bytes(store.put_bytes(data).sha256) == data


@pytest.mark.parametrize("limit", [1, 1000])
def test_continues_after_short_writes(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int
) -> None:
    real_write, calls = os.write, []

    def short(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        return real_write(descriptor, data[:limit])

    data = LARGE if limit > 1 else b"a small one"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        output = local.put_bytes(data)
        local.copy_to(output.sha256, str(tmp_path / "out"))
    assert len(calls) > 10
    assert local.get_bytes(output.sha256) == (tmp_path / "out").read_bytes() == data
    assert verify(local).damage == ()


# -- real errors of the kernel


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mounted file system in memory, with the options that the test gives."""
    with mounted(tmp_path / "disk", request.param) as place:
        yield place


@pytest.mark.parametrize("disk", ["size=3m"], indirect=True)
def test_a_full_disk_is_an_error_and_a_collection_still_works(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = store.put_record(record(1, plan=store.put_bytes(b"while there was room")))
    store.put_bytes(b"of no record" * 1000)
    (disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        store.put_bytes(LARGE + LARGE[::-1])
    assert caught.value.hint == "free some space, or run `trtbuild cache gc`"
    assert list((store.root / "tmp").iterdir()) == []
    assert verify(store).damage == ()
    # on the full disk, entries can still be read, and the collection that the hint proposes works
    rest = disk / "rest"
    with pytest.raises(OSError, match="No space left"), open(rest, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    reopened = LocalStore(disk / "store")
    with reopened.session():
        assert reopened.get_record(kept.recipe.key) == kept
    report = collect(reopened, slack_s=-3600.0)  # every entry counts as old enough
    assert report.blobs_removed > 0 and report.records_kept == 1
    rest.unlink()
    (disk / "ballast").unlink()
    assert reopened.get_bytes(reopened.put_bytes(LARGE).sha256) == LARGE


@pytest.mark.parametrize("disk", ["size=8m,nr_inodes=40"], indirect=True)
def test_a_disk_without_free_inodes_is_an_error(disk: Path) -> None:
    store = LocalStore(disk / "store")
    with pytest.raises(StoreUnavailable, match="No space left"):
        for number in range(100):
            store.put_bytes(b"%d" % number)
    assert verify(store).damage == ()
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("disk", ["size=8m"], indirect=True)
def test_reads_from_a_disk_that_becomes_read_only(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = store.put_record(record(1, plan=store.put_bytes(LARGE)))
    make_read_only(disk, "size=8m")
    for reader in (store, LocalStore(disk / "store")):
        with reader.session():
            assert reader.get_record(kept.recipe.key) == kept
            assert reader.get_bytes(kept.outputs["plan"].sha256) == LARGE
            with pytest.raises(StoreUnavailable, match="Read-only") as caught:
                reader.put_bytes(b"new")
            assert caught.value.hint and "TRTBUILD_CACHE_DIR" in caught.value.hint
        with pytest.raises(StoreUnavailable, match="Read-only"):
            collect(reader)
    assert outcome_of(lambda place: LocalStore(place / "store").put_bytes(LARGE).size, disk) == {
        "result": len(LARGE)
    }, "a blob that exists already needs no write"
