"""Run many processes (``--crowd``) that read and write the same engines in one store. Some also remove old entries.

Each process needs every engine, in its own order, and builds the missing engines. The engines are large enough for
several chunks, and share half of their bytes. One process in six removes old entries after each engine (it *collects*),
with a size limit of one byte. The collection must remove old records, but no record that a running process uses
(`LocalStore.session`). The session of a process also protects the records that other processes store later. All
sessions begin before the first engine is built, so each engine is built exactly once.

The time is compared with that of one process that gets every engine as often as all processes together.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.session import Session
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.store.collection.check import verify
from trtbuild.store.collection.collect import collect
from trtbuild.store.local.local import LocalStore

_ENGINE_COUNT = 24
_ENGINE_BYTES = 1_500_000
#: The number of records that are in the store before the processes start.
_OLD_RECORD_COUNT = 40
_DAY_S = 86400


def rows(session: Session) -> Iterator[Row]:
    folder = session.empty_folder("crowd")
    process_count = session.sizes.crowd
    _put_old_records(LocalStore(folder / "store"))
    together_s, failures = _run_together(folder, process_count)
    built = (folder / "built").read_text().split()
    store = LocalStore(folder / "store")
    remaining = {key for key, _ in store.entries.layout.entries("ac")}
    expected = {_recipe(number).key for number in range(_ENGINE_COUNT)}
    report = verify(store)
    name = f"{process_count} processes put, get and collect"
    yield Check(f"{name}: no error", not failures, f"{len(failures)} failed {failures[:1] or ''}")
    each_once = sorted(built, key=int) == [str(number) for number in range(_ENGINE_COUNT)]
    yield Check(f"{name}: each engine built once", each_once, f"{len(built)} built of {_ENGINE_COUNT}")
    yield Check(
        f"{name}: no lost entry",
        expected <= remaining and not report.damage,
        f"{len(expected & remaining)} of {_ENGINE_COUNT} left, {len(report.damage)} damaged",
    )
    old = {_recipe(-number).key for number in range(1, _OLD_RECORD_COUNT + 1)}
    yield Check(
        f"{name}: old records are collected", not old & remaining, f"{len(old & remaining)} of {_OLD_RECORD_COUNT} left"
    )
    alone_s, failures = _run_together(folder / "alone", 1, round_count=process_count)
    if failures:
        raise RuntimeError(failures[0])
    yield Ratio(name, Value("together", together_s), Value("one after another, in one process", alone_s))


def _run_together(folder: Path, process_count: int, round_count: int = 1) -> tuple[float, list[str]]:
    """Run the processes. Return the seconds until all have ended, and the texts of the errors."""
    folder.mkdir(exist_ok=True)
    (folder / "built").touch()
    command = [sys.executable, "-m", "benchmarks.measurements.crowd", str(folder), str(round_count)]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(process_count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # the process has started its session
        started = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        failures = []
        for process in processes:
            _, errors = process.communicate(timeout=600)
            if process.returncode or errors:
                failures.append(errors.decode(errors="replace")[-500:] or f"exit {process.returncode}")
        return time.perf_counter() - started, failures
    finally:
        for process in processes:
            process.kill()


def _put_old_records(store: LocalStore) -> None:
    """Put records that were last used a day ago. Their numbers are negative, unlike the numbers of the engines."""
    with store.session():
        for number in range(1, _OLD_RECORD_COUNT + 1):
            blob = store.put_bytes(random.Random(-number).randbytes(200_000))
            store.put_record(Record(_recipe(-number), {"plan": blob}, {}))
    long_ago = time.time() - _DAY_S
    for kind in ("cas", "ac"):
        for path in (store.root / kind).glob("*/*"):
            os.utime(path, (long_ago, long_ago))


def _recipe(number: int) -> Recipe:
    return Recipe("engine", 1, (("number", number),))


def _engine(number: int) -> bytes:
    return random.Random(0).randbytes(_ENGINE_BYTES // 2) + random.Random(number + 1).randbytes(_ENGINE_BYTES // 2)


def _run_process(folder: Path, round_count: int, number: int) -> None:
    """Get or build every engine, `round_count` times, in another order in each process and round."""
    store = LocalStore(folder / "store")
    with store.session():
        print("ready", flush=True)
        sys.stdin.readline()
        for round_number in range(round_count):
            order = list(range(_ENGINE_COUNT))
            random.Random(number + round_number).shuffle(order)
            for engine in order:
                _get_or_build(store, folder, engine)
                if number % 6 == 5:
                    collect(store, max_size=1)


def _get_or_build(store: LocalStore, folder: Path, number: int) -> None:
    """Read an engine from the store, or build it. Raises RuntimeError if the store returns wrong bytes."""
    key = _recipe(number).key
    record = store.get_record(key)
    if record is None:
        with store.building(key):
            record = store.get_record(key)
            if record is None:
                with open(folder / "built", "a") as built:
                    built.write(f"{number}\n")
                record = store.put_record(Record(_recipe(number), {"plan": store.put_bytes(_engine(number))}, {}))
    data = store.get_bytes(record.outputs["plan"].sha256)
    if hashlib.sha256(data).digest() != hashlib.sha256(_engine(number)).digest():
        raise RuntimeError(f"engine {number} has other bytes")


if __name__ == "__main__":
    _run_process(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
