"""Measure commands: wall and CPU time of a process tree, its peak memory, and the libraries that it maps.

Rules
1. The commands of a comparison run alternately (`run_alternately`), so that other load of the machine slows all of
   them. The medians over the runs are reported.
2. Memory is PSS (proportional set size), summed over all processes of the tree. PSS divides a shared page among its
   processes, so the sum counts the page once. The memory of a run is the largest of its samples, which are taken every
   `SAMPLE_S` seconds. A peak between two samples is missed.
3. Samples slow the measured processes. On two cores, they made a build with several processes a tenth slower. So
   `measure_alternately` measures memory in a separate run, and takes the times from the other runs.
4. The CPU time includes processes that run a moment longer than the command. They become children of this process
   (prctl(2), PR_SET_CHILD_SUBREAPER). This process waits at most `_ORPHANS_S` seconds for them, after the wall time has
   been read.
5. A command that fails ends the benchmark, because a failed run is not a measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

#: Seconds between two samples of memory.
SAMPLE_S = 0.1

#: Seconds to wait for the processes that a command leaves running.
_ORPHANS_S = 10.0

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>


class CommandFailed(Exception):
    """A measured command did not end with status 0. The text of the error has its output."""


@dataclass(frozen=True)
class Run:
    """Time and memory of one run of a command. The CPU time is user and system time of the whole process tree."""

    wall_s: float
    cpu_s: float
    stdout: bytes
    #: The largest sample of memory (rule 2), or 0 if memory was not measured.
    peak_bytes: int = 0
    #: The texts of `watched` that occurred in the path of a mapped file of any process in the tree.
    mapped: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s, CPU {self.cpu_s:.2f} s, {self.peak_bytes / 1e6:.0f} MB"


@dataclass(frozen=True)
class Median:
    """The medians of times and memory over the runs of one command.

    The times are those of the runs without a measurement of memory, if there are any (rule 3).
    """

    wall_s: float
    cpu_s: float
    peak_bytes: float
    runs: tuple[Run, ...]

    @staticmethod
    def of(runs: Sequence[Run]) -> Median:
        timed = [run for run in runs if not run.peak_bytes] or runs
        peaks = [run.peak_bytes for run in runs if run.peak_bytes] or [0]
        return Median(
            statistics.median(run.wall_s for run in timed),
            statistics.median(run.cpu_s for run in timed),
            statistics.median(peaks),
            tuple(runs),
        )


def run(
    command: Sequence[str | Path],
    cwd: Path,
    *,
    environment: Mapping[str, str] | None = None,
    measure_memory: bool = False,
    watched: Sequence[str] = (),
    sample_s: float = SAMPLE_S,
    timeout_s: float = 3600,
) -> Run:
    """Run a command, and measure it. Raises CommandFailed if its exit status is not 0.

    The command is killed after `timeout_s`. `watched` are parts of file names, such as ``libtorch``. With `watched`, the
    mapped files are sampled instead of the memory.
    """
    log_file = cwd / f".benchmark-{os.getpid()}.log"
    earlier_children = _children()
    with _orphans_become_children(), open(log_file, "w+b") as log:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        process = subprocess.Popen(
            list(command), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
        sampler = _Sampler(process.pid, watched, sample_s) if measure_memory or watched else None
        killer = threading.Timer(timeout_s, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            with process.stdout as stream:
                stdout = stream.read()
            process.wait()
            wall_s = time.perf_counter() - started
            _wait_for_orphans(earlier_children)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finally:
            killer.cancel()
            if sampler is not None:
                sampler.stop()
            process.kill()
        log.seek(0)
        log_bytes = log.read()
    log_file.unlink()
    if process.returncode != 0:
        text = (log_bytes[-4000:] + stdout[-2000:]).decode(errors="replace")
        raise CommandFailed(f"{' '.join(map(str, command))}: exit {process.returncode}\n{text}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak, mapped = (sampler.peak_bytes, frozenset(sampler.mapped)) if sampler is not None else (0, frozenset())
    return Run(wall_s, cpu_s, stdout, peak, mapped)


@contextlib.contextmanager
def _orphans_become_children() -> Iterator[None]:
    """Inside the context, a process whose parent ends becomes a child of this process (rule 4).

    At the end, the earlier setting is restored. Otherwise later orphans would also become children of this process. They
    would stay as zombies, because this process does not wait for them.
    """
    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _wait_for_orphans(earlier_children: set[int]) -> None:
    """Wait at most `_ORPHANS_S` seconds for the children that are not in `earlier_children` (rule 4)."""
    deadline = time.monotonic() + _ORPHANS_S
    while (orphans := _children() - earlier_children) and time.monotonic() < deadline:
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def run_alternately(repeats: int, **candidates: Callable[[], Run]) -> dict[str, Median]:
    """Run all candidates `repeats` times, every second time in reverse order. Return candidate → medians."""
    runs: dict[str, list[Run]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(repeats):
        for name in names if number % 2 == 0 else reversed(names):
            runs[name].append(candidates[name]())
    return {name: Median.of(candidate_runs) for name, candidate_runs in runs.items()}


def measure_alternately(repeats: int, **candidates: Callable[[bool], Run]) -> dict[str, Median]:
    """Run all candidates `repeats` times to measure times, and once more to measure memory. Return candidate → medians.

    A candidate is called with True when it must measure the memory.
    """
    timed, sampled = (
        run_alternately(count, **{name: partial(candidate, measure_memory) for name, candidate in candidates.items()})
        for measure_memory, count in ((False, repeats), (True, 1))
    )
    return {name: Median.of((*timed[name].runs, *sampled[name].runs)) for name in candidates}


class _Sampler(threading.Thread):
    """Samples a process and its descendants until `stop` is called."""

    def __init__(self, pid: int, watched: Sequence[str], sample_s: float) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.mapped: set[str] = set()
        self._root = psutil.Process(pid)
        self._watched = tuple(watched)
        self._sample_s = sample_s
        self._stop_requested = threading.Event()
        self.start()

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()

    def run(self) -> None:
        while not self._stop_requested.wait(self._sample_s):
            self._sample()

    def _sample(self) -> None:
        total = 0
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                if self._watched:
                    maps = Path(f"/proc/{process.pid}/maps").read_text()
                    self.mapped.update(name for name in self._watched if name in maps)
                else:
                    total += process.memory_full_info().pss
            except (psutil.Error, OSError):
                continue  # the process has just ended
        self.peak_bytes = max(self.peak_bytes, total)
