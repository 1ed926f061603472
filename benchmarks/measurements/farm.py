"""Measure engine steps on the workers of a Dask scheduler: small real engines, and workers that sleep instead of compiling.

The scheduler, the workers and the driver (the process that sends the steps) run on this machine, and share its cores. The
workers that sleep do all work of an engine step except the compilation: they read the job, look in the store, write a
record, and answer.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.figure import Measurement, Ratio, Row, Value
from benchmarks.session import Session

_SLEEP_S = 2.0
#: The number of steps that run at the same time (slots), and the number of worker processes that share the slots.
_SLOTS_AND_PROCESSES = ((16, 1), (16, 8), (64, 1), (256, 1))
#: The longest allowed time of all steps divided by their number, in seconds, if the steps compile nothing.
_LONGEST_OVERHEAD_S = 0.015
#: The least allowed efficiency (ideal time divided by measured time) with `_EFFICIENT_SLOTS` slots.
_LEAST_EFFICIENCY, _EFFICIENT_SLOTS = 0.9, 64
#: Seconds within which a process has to start, and to end.
_START_S = 60.0


def rows(session: Session) -> Iterator[Row]:
    yield from _real_engines(session)
    folder = session.empty_folder("farm")
    with _workers(folder / "quick", slots=16, processes=1, sleep_s=0.0) as address:
        steps = 400
        cost = _drive(folder / "quick", address, steps=steps, slots=16)
        step_s = Value("a step", cost["elapsed_s"] / steps)
        yield Measurement("a step that compiles nothing, 16 at the same time", step_s, bound=_LONGEST_OVERHEAD_S)
        yield Measurement("CPU time of the driver for a step", Value("CPU", cost["cpu_s"] / steps))
        many = session.sizes.farm_steps
        cost = _drive(folder / "quick", address, steps=many, slots=16)
        yield Measurement(f"memory that the driver adds in {many} steps", Value("memory", cost["grown_bytes"], "B"))
    for slots, processes in _SLOTS_AND_PROCESSES:
        name = f"{slots} workers of 2 s in {processes} {'process' if processes == 1 else 'processes'}"
        workers_folder = folder / f"{slots}-{processes}"
        with _workers(workers_folder, slots=slots // processes, processes=processes, sleep_s=_SLEEP_S) as address:
            rounds = 4
            cost = _drive(workers_folder, address, steps=rounds * slots, slots=slots)
        bound = _LEAST_EFFICIENCY if slots == _EFFICIENT_SLOTS else None
        ideal, real = Value("ideal", rounds * _SLEEP_S), Value("measured", cost["elapsed_s"])
        yield Ratio(f"{name}: efficiency", ideal, real, bound=bound, at_least=True)
        yield Measurement(f"{name}: CPU time of the driver for a step", Value("CPU", cost["cpu_s"] / (rounds * slots)))


def _real_engines(session: Session) -> Iterator[Row]:
    """Build 24 small engines with one, two and four local workers, and compare each build with one without workers."""
    project = projects.write_many(session.empty_folder("farm-real"), model_count=8, target_count=3)
    _build(session, project, "--until", "convert")
    shutil.copytree(project / "cache", project / "without engines")
    times: dict[int, float] = {}
    for workers in (0, 1, 2, 4):
        for name in ("cache", "dist", ".trtbuild"):
            shutil.rmtree(project / name, ignore_errors=True)
        shutil.copytree(project / "without engines", project / "cache")
        times[workers] = _build(session, project, *(("--workers", f"local:{workers}") if workers else ("-j", "2")))
        if workers:
            with_workers, without = Value(f"local:{workers}", times[workers]), Value("no workers, -j 2", times[0])
            yield Ratio(f"24 engines with {workers} local workers", with_workers, without)


def _build(session: Session, project: Path, *arguments: str) -> float:
    started = time.monotonic()
    subprocess.run(
        [session.trtbuild, "build", "--quiet", *arguments], cwd=project, check=True, env=_environment(project)
    )
    return time.monotonic() - started


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TRTBUILD_CACHE_DIR": str(folder / "cache"), "TRTBUILD_CONFIG": "/dev/null"}


def _drive(folder: Path, address: str, *, steps: int, slots: int) -> dict[str, Any]:
    """Run `steps` steps, `slots` at the same time. Returns the costs that `benchmarks.farm.driving` prints."""
    command = [sys.executable, "-m", "benchmarks.farm.driving", address, str(steps), str(slots)]
    environment = {**_environment(folder), "PYTHONPATH": str(Path.cwd())}
    driver = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment)
    costs: dict[str, Any] = json.loads(driver.stdout.splitlines()[-1])
    return costs


@contextmanager
def _workers(folder: Path, *, slots: int, processes: int, sleep_s: float) -> Iterator[str]:
    """Start a scheduler, and worker processes with `slots` slots each and the cache in `folder`.

    Yields the address of the scheduler.
    """
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        **_environment(folder),
        "PYTHONPATH": str(Path.cwd()),
        "TRTBUILD_BENCH_SLEEP_S": str(sleep_s),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps(["benchmarks.farm.sleeping"]),
    }
    worker = [sys.executable, "-m", "trtbuild", "worker", address, "--slots", str(slots)]
    commands = [[*scheduler, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"], *([worker] * processes)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            log = folder / f"{number}.log"
            with log.open("wb") as output:
                running.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output))
            if number == 0:
                _wait_for(log, "Scheduler at:")
        for number in range(1, len(commands)):
            _wait_for(folder / f"{number}.log", "at the same time")
        yield address
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(timeout=_START_S)


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + _START_S
    while text not in log.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log} has no line with {text!r}:\n{log.read_text()}")
        time.sleep(0.05)
