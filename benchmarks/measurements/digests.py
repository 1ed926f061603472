"""Measure the time to compute the digest of a large weights file: a new file, and a file with a new time but equal bytes.

trtbuild's digests (`store/digests/fingerprint.py`) are compared with plain hashes: xxh3-128 and SHA-256. The plain hashes
read the same file in pieces of 1 MiB, in one thread of the same process. The file is in the page cache, so the times
include the copy from the page cache. The file has 2 GB, with ``--full`` 10 GB. Before the first digest, the benchmark
waits once until trtbuild trusts the times of the file.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figure import Ratio, Row, Value
from benchmarks.measure import run
from benchmarks.session import Session

#: The plain hashes read the file in pieces of this many bytes.
_PIECE = 1 << 20


def rows(session: Session) -> Iterator[Row]:
    size = int(session.sizes.weights_gb * 1e9)
    folder = session.folder("digests")
    path = folder / "weights.bin"
    if not path.exists() or path.stat().st_size != size:
        session.say(f"  writing {size / 1e9:g} GB")
        _random_file(path, size)
    session.say("  hashing")
    code = "import sys; from benchmarks.measurements.digests import measure; measure(sys.argv[1], int(sys.argv[2]))"
    environment = {**session.environment(), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, str(path), str(session.sizes.cold_repeats)]
    medians = json.loads(run(command, folder, environment=environment).stdout)
    name = f"digest of a {size / 1e9:g} GB file"
    for state, case, floor, bound in (
        ("unchanged after a touch", "touched", "xxh3", 2.0),
        ("new", "new", "sha256", 1.3),
    ):
        (wall_s, cpu_s), (floor_wall_s, floor_cpu_s) = medians[case], medians[floor]
        yield Ratio(f"{name}, {state}", Value("trtbuild", wall_s), Value(floor, floor_wall_s), bound=bound)
        yield Ratio(f"{name}, {state}: CPU time", Value("trtbuild", cpu_s), Value(floor, floor_cpu_s))


def measure(path: str, repeats: int) -> None:
    """Print, as JSON, name → [wall time, CPU time]: medians in seconds over `repeats` runs each. The names alternate."""
    import hashlib
    import shutil
    import tempfile

    import xxhash

    from trtbuild.store.digests.fingerprint import FileDigests
    from trtbuild.store.digests.index import Index

    def plain_hash(hasher: Any) -> Any:
        buffer = memoryview(bytearray(_PIECE))
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(buffer[:count])
        return hasher.hexdigest()

    folder = tempfile.mkdtemp(dir=Path(path).parent)
    known = FileDigests(Index(Path(folder) / "known"))
    expected = plain_hash(hashlib.sha256())
    time.sleep(2.5)  # trtbuild does not trust the times of a file that was written just now
    if known.sha256(path) != expected:
        raise RuntimeError("the digest is wrong")

    def touched() -> None:
        os.utime(path)
        if known.sha256(path) != expected:
            raise RuntimeError("the digest is wrong")

    def new(number: int) -> None:
        if FileDigests(Index(Path(folder) / f"new{number}")).sha256(path) != expected:
            raise RuntimeError("the digest is wrong")

    times: dict[str, list[tuple[float, float]]] = {"xxh3": [], "sha256": [], "touched": [], "new": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        times[name].append((time.perf_counter() - wall, time.process_time() - cpu))

    try:
        for number in range(repeats):
            timed("xxh3", lambda: plain_hash(xxhash.xxh3_128()))
            timed("touched", touched)
            timed("sha256", lambda: plain_hash(hashlib.sha256()))
            timed("new", partial(new, number))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        json.dumps(
            {name: [statistics.median(part) for part in zip(*runs, strict=True)] for name, runs in times.items()}
        )
    )


def _random_file(path: Path, size: int) -> None:
    block = os.urandom(64 << 20)
    with open(path, "wb") as file:
        remaining, number = size, 0
        while remaining:
            part = number.to_bytes(8, "little") + block[8:remaining]  # no two blocks are equal
            file.write(part[:remaining])
            remaining -= min(len(part), remaining)
            number += 1
