"""Build the examples' engines on one GPU, on all GPUs of the host, and by workers of a Dask scheduler. Then verify them:
``python -m benchmarks.gpu.several_gpus DIR``.

First write DIR with ``python -m benchmarks.gpu write``, and run ``trtbuild build --until convert`` in DIR/examples. Each
build starts from a copy of DIR/examples and its cache. The host needs at least two GPUs, and its Python needs TensorRT and
`distributed`. The part ``verify`` (`verify_on_workers`) also needs torch for CUDA, onnx and onnxruntime. All parts together
take ten minutes.

The exit code is 0 when all parts have run, even if a check is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Ratio, Row, Value, line, table, to_json
from benchmarks.gpu.several_gpus import verify_on_workers
from benchmarks.gpu.several_gpus.processes import Machine
from trtbuild.toolchain.libraries.table import installed_version

#: The parts of the measurement. ``verify`` uses the engines of ``workers``.
PARTS = ("one", "all", "workers", "verify")


def rows(machine: Machine, models: Sequence[str] = (), parts: Sequence[str] = PARTS) -> Iterator[Row]:
    """Build the same engines in three ways, compare the wall times of the builds, and verify the engines.

    `parts` may leave out some of this. `models` are the models to build; if it is empty, all models are built.
    """
    count = len(_gpus())
    yield Check("the host has several GPUs", count > 1, f"{count} GPUs")
    on_one_gpu = None
    with_torch = machine
    # Another version of torch may have traced the models. With the installed torch, a build would trace them again. So the
    # builds use a Python without torch.
    if find_spec("torch") is not None:
        machine = verify_on_workers.without_torch(machine)
    if "one" in parts:
        on_one_gpu = _build(machine, machine.copy_project("one"), *models, gpus="0")
        yield from _facts("one GPU", on_one_gpu)
    if "all" in parts:
        several = _build(machine, machine.copy_project("all"), *models)
        yield from _facts(f"{count} GPUs", several)
        yield from _ratio(f"{count} GPUs, compared with one", several, on_one_gpu)
    if "workers" in parts:
        project = machine.copy_project("workers")
        with machine.scheduler(project, "scheduler") as scheduler:
            address = scheduler.wait_for_scheduler()
            with machine.worker(project, "worker", address):
                built = _build(machine, project, "--workers", address, *models)  # the build waits for the workers
        yield from _facts("Dask workers", built)
        names = {step["worker"] for step in built["steps"] if step.get("worker")}
        yield Check("each GPU has a worker that built engines", len(names) == count, ", ".join(sorted(names)))
        yield from _ratio(f"{count} Dask workers, compared with one GPU", built, on_one_gpu)
    if "verify" in parts:
        yield from verify_on_workers.rows(with_torch, machine.work / "workers", models, count)


def _build(machine: Machine, project: Path, *arguments: str, gpus: str | None = None) -> Any:
    variables = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    command = ["build", "--until", "engine", "--keep-going", *arguments]
    return machine.trtbuild(project, project.name, *command, variables=variables)


def _gpus() -> list[str]:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [text for text in listed.splitlines() if text.startswith("GPU ")]


def _facts(name: str, document: Any) -> Iterator[Row]:
    engines = document["totals"].get("engine", {})
    errors = "; ".join(str(error["text"])[:300] for error in document["errors"])
    yield Check(f"{name}: all engines are built", document["ok"], errors or str(engines))
    yield Measurement(f"{name}: the build", Value("wall time", document["duration_s"]))


def _ratio(name: str, document: Any, on_one_gpu: Any) -> Iterator[Row]:
    if on_one_gpu is not None:
        yield Ratio(
            name,
            Value("wall time", round(document["duration_s"], 1), "s"),
            Value("one GPU", round(on_one_gpu["duration_s"], 1), "s"),
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.several_gpus", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("several-gpus"), metavar="DIR", help="default %(default)s")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--models", nargs="+", default=(), metavar="MODEL", help="default: all models of the examples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    gpus = "; ".join(text.partition(" (")[0] for text in _gpus()) or "no GPU"
    print(f"{gpus}; tensorrt {installed_version('tensorrt')}; {os.cpu_count()} cores", flush=True)
    measured = []
    machine = Machine((options.folder / "examples").absolute(), options.work.absolute())
    for row in rows(machine, options.models, options.parts):
        measured.append(("several GPUs", row))
        print(line(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([to_json(row) for _, row in measured], indent=2) + "\n")
    print("\n" + table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
