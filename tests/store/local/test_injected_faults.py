"""Errors that the kernel gives: at the system calls that write, from full and read-only disks.

`tests.faults.enumeration` says how errors are injected; ``python -m tests.faults.enumeration error`` gives each error at
each call. ``TRTBUILD_KILLS=1000`` does so here.
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

#: Faults at so many calls of each operation, spread over all of them, the errors in turn.
AT_MOST = 10**6 if int(os.environ.get("TRTBUILD_KILLS", "16")) >= 100 else 17


@pytest.mark.parametrize("operation", [*OPERATIONS, *REMOTE_OPERATIONS])
def test_an_error_of_a_writing_call_is_reported_or_harmless(operation: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.enumeration", "error", operation, "--at-most", str(AT_MOST)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout, done.stderr[-4000:]
    document = json.loads(done.stdout)
    (tally,) = document["tallies"]
    assert tally["findings"] == []
    assert document["total"] >= min(15, tally["calls"]), "the errors were delivered"
    assert tally["outcomes"].keys() - {"result"}, "no error was ever reported"


@pytest.mark.parametrize("data", [b"small" * 1000, LARGE], ids=["small", "chunked"])
def test_a_lost_write_is_detected_by_the_next_read(tmp_path: Path, data: bytes) -> None:
    """Bytes that were lost before they reached the disk are detected by the next read, and never returned."""
    LocalStore(tmp_path / "store").put_bytes(b"so that the directories are there")

    def put(place: Path) -> object:
        return LocalStore(place / "store").put_bytes(data).sha256

    outcome = traced(put, tmp_path, "write:retval=4096:when=1")
    assert outcome.tampered and "result" in outcome.report
    store = LocalStore(tmp_path / "store")
    assert len(verify(store, quarantine=False).damage) >= 1
    with pytest.raises((EntryCorrupt, BlobMissing)):
        store.get_bytes(outcome.report["result"])
    assert store.get_bytes(store.put_bytes(data).sha256) == data


@pytest.mark.parametrize("most", [1, 1000])
def test_writes_that_take_only_a_part(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    real, calls = os.write, []

    def short(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        return real(descriptor, data[:most])

    data = LARGE if most > 1 else b"a small one"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        output = local.put_bytes(data)
        local.copy_to(output.sha256, str(tmp_path / "out"))
    assert len(calls) > 10
    assert local.get_bytes(output.sha256) == (tmp_path / "out").read_bytes() == data
    assert verify(local).damage == ()


# -- a real disk


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", request.param) as place:
        yield place


@pytest.mark.parametrize("disk", ["size=3m"], indirect=True)
def test_a_disk_that_runs_full(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = store.put_record(record(1, plan=store.put_bytes(b"while there was room")))
    store.put_bytes(b"of no record" * 1000)
    (disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        store.put_bytes(LARGE + LARGE[::-1])
    assert caught.value.hint == "free some space, or run `trtbuild cache gc`"
    assert list((store.root / "tmp").iterdir()) == []
    assert verify(store).damage == ()
    # on the full disk what is there can be read, and what the hint says can be done
    ballast = disk / "rest"
    with pytest.raises(OSError, match="No space left"), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    again = LocalStore(disk / "store")
    with again.session():
        assert again.get_record(kept.recipe.key) == kept
    collected = collect(again, slack_s=-3600.0)
    assert collected.blobs_removed > 0 and collected.records_kept == 1
    ballast.unlink()
    (disk / "ballast").unlink()
    assert again.get_bytes(again.put_bytes(LARGE).sha256) == LARGE


@pytest.mark.parametrize("disk", ["size=8m,nr_inodes=40"], indirect=True)
def test_a_disk_that_has_no_inodes_left(disk: Path) -> None:
    store = LocalStore(disk / "store")
    with pytest.raises(StoreUnavailable, match="No space left"):
        for number in range(100):
            store.put_bytes(b"%d" % number)
    assert verify(store).damage == ()
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("disk", ["size=8m"], indirect=True)
def test_a_disk_that_turns_read_only(disk: Path) -> None:
    store = LocalStore(disk / "store")
    kept = store.put_record(record(1, plan=store.put_bytes(LARGE)))
    make_read_only(disk, "size=8m")
    for each in (store, LocalStore(disk / "store")):
        with each.session():
            assert each.get_record(kept.recipe.key) == kept
            assert each.get_bytes(kept.outputs["plan"].sha256) == LARGE
            with pytest.raises(StoreUnavailable, match="Read-only") as caught:
                each.put_bytes(b"new")
            assert caught.value.hint and "TRTBUILD_CACHE_DIR" in caught.value.hint
        with pytest.raises(StoreUnavailable, match="Read-only"):
            collect(each)
    assert outcome_of(lambda place: LocalStore(place / "store").put_bytes(LARGE).size, disk) == {
        "result": len(LARGE)
    }, "what is there already needs no writing"
