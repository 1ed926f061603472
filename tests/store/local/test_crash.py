"""Processes that are killed while they write, and processes that write the same entries at the same time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

WRITER_PROGRAM = """
import random, sys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.store.local.local import LocalStore
store, seed = LocalStore(sys.argv[1]), int(sys.argv[2])
shared = random.Random(0).randbytes(1_500_000)
record_count = int(sys.argv[3])
print("ready", flush=True)
for number in range(record_count):
    with store.session():
        small = store.put_bytes(b"%d %d" % (seed, number))
        large = store.put_bytes(shared + b"%d" % number + shared)
        record = Record(Recipe("engine", 1, (("n", number), ("seed", seed))), {"info": small, "plan": large})
        store.put_record(record)
    print(record.recipe.key, flush=True)
"""


def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path, child: Callable[..., Any]) -> None:
    """Every record whose key was printed exists and has all its files. Unfinished files are only in tmp/."""
    moments = random.Random(11)
    killed, unfinished, printed = 0, 0, 0
    for seed in range(60):
        if seed >= 12 and unfinished:
            break  # at least one of twelve processes was killed during a write
        root = tmp_path / f"store{seed % 2}"
        writer = child(WRITER_PROGRAM, root, seed, 1000)  # more records than it can write before the kill
        assert writer.read_line() == "ready"
        keys = [writer.read_line() for _ in range(moments.randrange(3))]
        time.sleep(moments.uniform(0.0, 0.03))
        keys += writer.kill()
        assert writer.process.returncode == -signal.SIGKILL
        killed += 1
        store = LocalStore(root)
        assert verify(store).damage == ()
        for key in keys:
            record = store.get_record(key)
            assert record is not None
            for output in record.outputs.values():
                assert len(store.get_bytes(output.sha256)) == output.size
        printed += len(keys)
        unfinished += len(list((root / "tmp").glob("*")))
    assert killed >= 12 and printed > 0
    assert unfinished > 0, "a process was killed during a write"


def test_collects_leftovers_of_killed_processes(tmp_path: Path, child: Callable[..., Any]) -> None:
    holder = child(
        """
        import fcntl, os, sys
        from trtbuild.store.local.local import LocalStore
        store = LocalStore(sys.argv[1])
        store.put_bytes(b"x")
        unfinished = open(store.entries.layout.fresh_path(), "wb")
        fcntl.flock(unfinished, fcntl.LOCK_EX)
        session, building = store.session(), store.building("ab" * 32)
        session.__enter__(), building.__enter__()
        print("ready", flush=True)
        sys.stdin.readline()
        """,
        tmp_path,
    )
    assert holder.read_line() == "ready"
    store = LocalStore(tmp_path)
    (unfinished,) = tmp_path.glob("tmp/*")
    os.utime(unfinished, (0, 0))
    leftovers = [unfinished, *tmp_path.glob("sessions/*"), tmp_path / "locks" / ("ab" * 32)]
    assert len(leftovers) == 3

    assert collect(store).leftovers_removed == 0  # the process has locked all of them
    holder.kill()
    fresh = Path(store.entries.layout.fresh_path())
    fresh.write_bytes(b"")  # not locked, but too new
    assert collect(store).leftovers_removed == 3
    assert not any(path.exists() for path in leftovers)
    assert fresh.exists()


def test_several_processes_put_the_same_records_at_once(tmp_path: Path, child: Callable[..., Any]) -> None:
    writers = [child(WRITER_PROGRAM, tmp_path, 1, 12) for _ in range(3)]
    keys = {tuple(writer.finish().splitlines()) for writer in writers}
    assert len(keys) == 1
    store = LocalStore(tmp_path)
    report = verify(store)
    assert report.damage == ()
    assert (report.records, report.lists) == (12, 12)
    assert list((tmp_path / "tmp").iterdir()) == []
