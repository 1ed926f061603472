"""Compare the time of `trtbuild.load` for ViT-B's package with the time to read and hash the package's plan."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Measurement, Ratio, Row, Value
from benchmarks.gpu.host import Host

#: The program that measures one load. It loads TensorRT and creates the CUDA context before it starts the clock.
_LOAD_PROGRAM = """\
import json, sys, time
import torch, tensorrt
torch.zeros(1, device="cuda")
import trtbuild
trtbuild.load  # the first use of the name imports its module
from trtbuild.driver.packages.machine import library_for
from trtbuild.runtime.packages.package import open_package
from trtbuild.toolchain.running.execution import load_library
for target in open_package(sys.argv[1]).index.targets.values():
    load_library(library_for(target))
started = time.perf_counter()
loaded = trtbuild.load(sys.argv[1])
opened = time.perf_counter()
module = loaded.module()
finished = time.perf_counter()
print(json.dumps({"load": opened - started, "module": finished - opened}))
"""


def rows(host: Host) -> Iterator[Row]:
    package = host.vit / "dist" / "whole"
    plans = _plans(package)
    size = sum(plan.stat().st_size for plan in plans)
    times: dict[str, list[float]] = {"read and hash": [], "load": [], "module": []}
    for _ in range(3):
        times["read and hash"].append(_read_and_hash(plans))
        process = host.python(host.vit, ["-c", _LOAD_PROGRAM, str(package)])
        if process.returncode:
            raise RuntimeError(process.stderr[-3000:])
        for name, seconds in json.loads(process.stdout.splitlines()[-1]).items():
            times[name].append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    yield Measurement("ViT-B's plan", Value("size", size, "B"))
    floor = Value("read and hash", medians["read and hash"])
    yield Ratio("trtbuild.load of ViT-B", Value("load", medians["load"]), floor, bound=1.5)
    yield Measurement("its module, with deserialized engines", Value("module()", medians["module"]))


def _plans(package: Path) -> list[Path]:
    index = json.loads((package / "index.json").read_text())
    return [package / path for path in index["files"] if path.endswith(".plan")]


def _read_and_hash(paths: list[Path]) -> float:
    started = time.perf_counter()
    for path in paths:
        hashlib.sha256(path.read_bytes()).hexdigest()
    return time.perf_counter() - started
