"""Build the examples' engines on one GPU, on all GPUs of the host at once, and by workers of a Dask scheduler:
``python -m benchmarks.gpu.several_gpus DIR``.

DIR is the folder of ``python -m benchmarks.gpu write``. ``trtbuild build --until convert`` was run in DIR/examples. Each
build starts from a copy of this project and its cache. This Python has TensorRT and `distributed`, and needs no torch. The
host needs at least two GPUs.

Exit code 0 when everything was tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.figure import Check, Limit, Ratio, Row, Value, line, table, to_json
from trtbuild.toolchain.libraries.table import installed_version

#: Seconds in which a scheduler must have started, and in which a build must end.
_START_S, _BUILD_S = 60, 250
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class _Machine:
    """The converted project, and the folder for copies and logs."""

    examples: Path
    work: Path

    def copy_project(self, name: str) -> Path:
        """A copy of the project and its cache, without outputs."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("dist", ".trtbuild", "__pycache__")
        return Path(shutil.copytree(self.examples, folder, ignore=ignored))

    def environment(self, project: Path, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process that works in `project`."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
        path = os.pathsep.join(filter(None, [str(_ROOT), inherited.get("PYTHONPATH", "")]))
        return {**inherited, "PYTHONPATH": path, "TRTBUILD_CACHE_DIR": str(project / "cache"), **variables}

    def build(self, project: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Any:
        """The document of a build of all engines in `project`."""
        command = ["-m", "trtbuild", "build", "--until", "engine", "--json", "--keep-going", *arguments]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=project,
            env=self.environment(project, variables or {}),
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        (self.work / f"{project.name}.json").write_text(done.stdout)
        (self.work / f"{project.name}.stderr").write_text(done.stderr)
        return json.loads(done.stdout)


def rows(machine: _Machine) -> Iterator[Row]:
    """Build in the three ways. The builds of the same engines are compared by wall time."""
    count = len(_gpus())
    yield Check("the host has several GPUs", count > 1, f"{count} GPUs")
    one = machine.build(machine.copy_project("one"), variables={"CUDA_VISIBLE_DEVICES": "0"})
    yield from _facts("one GPU", one)
    several = machine.build(machine.copy_project("all"))
    yield from _facts(f"{count} GPUs", several)
    yield _ratio(f"{count} GPUs, compared with one", several, one)
    project = machine.copy_project("workers")
    with _scheduler(machine, project) as scheduler:
        address = scheduler.wait_for(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)")
        with _Process(machine, project, "worker", ["-m", "trtbuild", "worker", address]):
            workers = machine.build(project, "--workers", address)  # it begins before the workers have joined
    yield from _facts("Dask workers", workers)
    names = {step["worker"] for step in workers["steps"] if step.get("worker")}
    yield Check("each GPU has a worker that built engines", len(names) == count, ", ".join(sorted(names)))
    yield _ratio(f"{count} Dask workers, compared with one GPU", workers, one)


def _gpus() -> list[str]:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [text for text in listed.splitlines() if text.startswith("GPU ")]


def _facts(name: str, document: Any) -> Iterator[Row]:
    engines = document["totals"].get("engine", {})
    errors = "; ".join(str(error["text"])[:300] for error in document["errors"])
    yield Check(f"{name}: all engines are built", document["ok"], errors or str(engines))
    yield Limit(f"{name}: the build", Value("wall time", document["duration_s"]))


def _ratio(name: str, document: Any, one: Any) -> Row:
    return Ratio(
        name,
        Value("wall time", round(document["duration_s"], 1), "s"),
        Value("one GPU", round(one["duration_s"], 1), "s"),
    )


def _scheduler(machine: _Machine, project: Path) -> _Process:
    command = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    return _Process(machine, project, "scheduler", [*command, "--dashboard-address", "127.0.0.1:0"])


class _Process:
    """A process in the background, which ends with the context."""

    def __init__(self, machine: _Machine, project: Path, name: str, arguments: Sequence[str]) -> None:
        self._path = machine.work / f"{name}.log"
        self._log: IO[str] = self._path.open("w")
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=project,
            env=machine.environment(project, {}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def wait_for(self, pattern: str) -> str:
        """Return the first group of `pattern` in the process's output. Raises RuntimeError if it does not come."""
        for _ in range(10 * _START_S):
            found = re.search(pattern, self._path.read_text())
            if found is not None:
                return found[1]
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError(f"the output has no {pattern}: {self._path.read_text()[-500:]}")


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write all rows to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.several_gpus", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("several-gpus"), metavar="DIR", help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    gpus = "; ".join(text.partition(" (")[0] for text in _gpus()) or "no GPU"
    print(f"{gpus}; tensorrt {installed_version('tensorrt')}; {os.cpu_count()} cores", flush=True)
    measured = []
    for row in rows(_Machine((options.folder / "examples").absolute(), options.work.absolute())):
        measured.append(("several GPUs", row))
        print(line(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([to_json(row) for _, row in measured], indent=2) + "\n")
    print("\n" + table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
