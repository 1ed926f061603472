"""Compare `trtbuild.load` of a 350 MB package with reading and hashing the same bytes.

Three packages of one size (``--pull-mb``) are loaded: one with one engine, one with twelve engines, and one with a small
reference program and its weights, for ``device="cpu"``. Their bytes are random, because nothing that is loaded runs. The
GPU is imaginary: a function returns its SM, by which `trtbuild.load` chooses the target. ``module()`` would deserialize the
engines; `benchmarks.gpu` measures that on a GPU.

There are two floors, which are the least times that a program needs. They are measured on one thread of the same process,
with the files in the page cache.
1. Read each needed file and hash it with hashlib's SHA-256. Every program that needs verified bytes must do this.
2. Hash each file through a buffer of 1 MiB, without keeping its bytes. The ratio to this floor has no bound.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figure import Ratio, Row, Value
from benchmarks.measure import run
from benchmarks.session import Session

_PIECE = 1 << 20
_SM = 89

#: The contents of a package → the number of its engines, and the number of its weights.
_PACKAGES = {"one engine": (1, 0), "12 engines": (12, 0), "the reference of 150 weights": (0, 150)}


def rows(session: Session) -> Iterator[Row]:
    folder = session.folder("load")
    size = session.sizes.pull_mb * 1_000_000
    for contents, (engine_count, weight_count) in _PACKAGES.items():
        root = folder / f"{contents.replace(' ', '-')}-{size}"
        if not (root / "index.json").exists():
            session.say(f"  writing {size / 1e6:g} MB")
            _write(root, engine_count, weight_count, size)
        module = "benchmarks.measurements.load"
        code = f"import sys; from {module} import measure; measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
        environment = {**session.environment(), "PYTHONPATH": str(Path(__file__).parents[2])}
        device = "cuda:0" if engine_count else "cpu"
        command = [sys.executable, "-c", code, str(root), device, str(max(5, session.sizes.cold_repeats))]
        medians = json.loads(run(command, folder, environment=environment).stdout)
        name = f"load a package of {size / 1e6:g} MB ({contents})"
        yield Ratio(name, Value("trtbuild", medians["load"]), Value("read and hash", medians["whole"]), bound=1.5)
        yield Ratio(name, Value("trtbuild", medians["load"]), Value("hash and keep nothing", medians["buffer"]))


def measure(root: str, device: str, repeats: int) -> None:
    """Print, as JSON, the medians in seconds of loading (``load``) and of the two floors (``whole``, ``buffer``).

    ``bytes`` is the number of bytes that are loaded.
    """
    import trtbuild
    from trtbuild.runtime.calls.loaded import needed_files
    from trtbuild.runtime.packages.package import open_package
    from trtbuild.toolchain.libraries import devices

    devices.device_sms = lambda: (_SM,)  # type: ignore[assignment]  # the imaginary GPU
    package = open_package(root)
    target = None if device == "cpu" else package.index.targets["imagined"]
    names = needed_files(package, target)
    total = sum(package.index.files[name].size for name in names)

    def read_and_hash() -> object:
        contents = {}
        for name in names:
            with open(f"{root}/{name}", "rb") as file:
                contents[name] = file.read()
            if hashlib.sha256(contents[name]).hexdigest() != package.index.files[name].sha256:
                raise RuntimeError("the package is damaged")
        return contents

    def hash_through_a_buffer() -> object:
        buffer = memoryview(bytearray(_PIECE))
        intact = []
        for name in names:
            digest = hashlib.sha256()
            with open(f"{root}/{name}", "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
            intact.append(digest.hexdigest() == package.index.files[name].sha256)
        if not all(intact):
            raise RuntimeError("the package is damaged")
        return intact

    candidates: dict[str, Callable[[], object]] = {
        "load": lambda: trtbuild.load(root, device=device),
        "whole": read_and_hash,
        "buffer": hash_through_a_buffer,
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for work in candidates.values():  # import the modules, and fill the page cache
        work()
    for number in range(repeats):
        for name in candidates if number % 2 else reversed(candidates):
            started = time.perf_counter()
            result = candidates[name]()
            times[name].append(time.perf_counter() - started)
            del result
    print(json.dumps({"bytes": total, **{name: statistics.median(seconds) for name, seconds in times.items()}}))


def _write(root: Path, engine_count: int, weight_count: int, size: int) -> None:
    """Write a package with `engine_count` plans or `weight_count` weights, which have about `size` bytes in total."""
    from trtbuild.toolchain.libraries import table

    files: dict[str, Any] = {}

    def put(path: str, data: bytes) -> str:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        files[path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        return str(files[path]["sha256"])

    tensor = {"dtype": "float32", "shape": [["sym", 0], 8]}
    kind = "tensorrt" if engine_count else "torch"
    partition_count = engine_count or 1  # all weights belong to one Torch partition
    file_size = size // (engine_count or weight_count) // 4 * 4  # a whole number of float32 values

    weights = {}
    for slot in range(weight_count):
        data = os.urandom(file_size)
        sha256 = hashlib.sha256(data).hexdigest()
        put(f"weights/{sha256[:32]}", data)
        weights[str(slot)] = {
            "name": f"w{slot}",
            "dtype": "float32",
            "shape": [file_size // 4],
            "sha256": sha256,
        }
    program = os.urandom(1000)
    sha256 = hashlib.sha256(program).hexdigest()
    put(f"torch/{sha256[:32]}.pt2", program)

    partitions = [
        {
            "name": f"p{number}",
            "kind": kind,
            "graph": "0" * 64,
            "weights": list(range(weight_count)),
            "inputs": [[f"p{number - 1}:0" if number else "input:0", tensor]],
            "outputs": [tensor],
            "calls": [],
            "reasons": {},
        }
        for number in range(partition_count)
    ]
    plans = {f"p{number}": f"engines/imagined/p{number}.plan" for number in range(engine_count)}
    for path in plans.values():
        put(path, os.urandom(file_size))

    index = {
        "schema": "trtbuild.package/1",
        "model": "imagined",
        "inputs": [{"name": "x", "keyword": False, **tensor}],
        "outputs": [{"name": "output_0", **tensor}],
        "output_tree": {"kind": "tensor", "index": 0},
        "dims": [{"name": "batch", "min": 1, "max": 8, "multiple_of": 1}],
        "profiles": [{"name": "all", "shapes": {"x": {"min": [1, 8], "opt": [4, 8], "max": [8, 8]}}}],
        "precision": "float32",
        "targets": {
            "imagined": {
                "sm": _SM,
                "sms": [_SM],
                "toolchain": "tensorrt-rtx",
                "version": table.installed_version("tensorrt-rtx"),
                "version_compatible": False,
                "compatibility": "exact",
                "platform": table.host_platform(),
                "partitions": {
                    "schema": "trtbuild.partitions/1",
                    "partitions": partitions,
                    "outputs": [f"p{partition_count - 1}:0"],
                    "programs": {"0" * 64: sha256},
                },
                "engines": plans,
                "layers": {},
            }
        },
        "reference": bool(weight_count),
        "weights": weights,
        "files": files,
    }
    (root / "index.json").write_text(json.dumps(index))
