"""Measure ``trtbuild watch`` from saving a file to the end of the build. An edit changes one layer, or adds a comment.

The time is compared with that of two scripts. A user without trtbuild runs `straight_vit.py` again after each change.
`warm_export.py` is the *floor*, the least time: it only creates and exports the module, in a process that has loaded the
libraries. A build does this and more.

The watcher (the process of ``trtbuild watch``) reports the end of a build after the package is written. The CPU time
includes all processes of the watcher.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks import projects
from benchmarks.figure import Measurement, Ratio, Row, Value
from benchmarks.measure import CommandFailed, Median, Run
from benchmarks.session import Session, delete_build

#: The number of a layer in the middle.
_LAYER = 5

#: Activation functions that no layer has at the start. Each edit uses another one: the cache has no engine for it.
_ACTIVATIONS = ("ReLU", "ELU", "Tanh", "Sigmoid", "Softplus")

#: Seconds to wait after a build, because CPU time and memory are read when its processes have ended.
_WAIT_AFTER_BUILD_S = 3.0

#: A build that takes longer, in seconds, counts as failed.
_LONGEST_BUILD_S = 600.0


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    if sizes.cold_repeats > len(_ACTIVATIONS):
        raise ValueError(f"--cold-repeats can be at most {len(_ACTIVATIONS)}, because there are no more activations")
    layer = min(_LAYER, sizes.layers - 1)
    project = projects.write_vit(session.folder("vit-watch"), granularity=True, **sizes.vit)
    projects.undo_edits(project)
    delete_build(project, cache=True)
    script = session.script_median(project)
    floor = _floor(session, project)
    source = project / "models" / "vit.py"
    with _watched(session, project) as builds:
        edited = Median.of(
            [
                builds.after(partial(projects.edit_layer, project, layer, activation))
                for activation in _ACTIVATIONS[: sizes.cold_repeats]
            ]
        )
        commented = Median.of(
            [builds.after(partial(_add_comment, source, number)) for number in range(sizes.cold_repeats)]
        )
        memory = builds.idle_bytes()
    projects.undo_edits(project)
    yield from _compare(f"one layer's source of {sizes.layers}", edited, script, floor, bound=0.3)
    yield from _compare("a comment", commented, script, floor, bound=0.2)
    yield Measurement("watch: memory between builds", Value("trtbuild", memory, "B"))


def _compare(edit: str, builds: Median, script: Median, floor: Median, bound: float) -> Iterator[Row]:
    name = f"watch, {edit}"
    wall = Value("trtbuild", builds.wall_s)
    yield Ratio(f"{name}: time", wall, Value("script", script.wall_s), bound=bound)
    yield Ratio(f"{name}: time", wall, Value("build and export the module", floor.wall_s))
    yield Ratio(f"{name}: CPU time", Value("trtbuild", builds.cpu_s), Value("script", script.cpu_s))


def _add_comment(source: Path, number: int) -> None:
    source.write_text(source.read_text() + f"# comment {number}\n")


def _floor(session: Session, project: Path) -> Median:
    sizes = session.sizes
    arguments = map(str, (sizes.layers, sizes.hidden, sizes.image))
    program = subprocess.run(
        [sys.executable, Path(__file__).parent / "scripts" / "warm_export.py", *arguments],
        cwd=project,
        env=session.environment(),
        input="\n" * sizes.cold_repeats,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LONGEST_BUILD_S,
        check=True,
    )
    runs = [Run(float(wall_s), float(cpu_s), b"") for wall_s, cpu_s in map(str.split, program.stdout.splitlines())]
    session.say("  build and export the module: " + ", ".join(f"{run.wall_s:.2f} s" for run in runs))
    return Median.of(runs)


class _Builds:
    """The builds of the watcher `process`, which reports them in the file `log`."""

    def __init__(self, session: Session, process: psutil.Popen, log: Path) -> None:
        self._session = session
        self._process = process
        self._log = log

    def after(self, change: Callable[[], object]) -> Run:
        """Call `change`, and wait for the end of the build. Returns the wall time and CPU time of the build."""
        count, cpu_s, started = self._count(), self._cpu_s(), time.perf_counter()
        change()
        self.wait_for(count + 1)
        wall_s = time.perf_counter() - started
        time.sleep(_WAIT_AFTER_BUILD_S)
        build = Run(wall_s, self._cpu_s() - cpu_s, b"")
        self._session.say(f"  after the change: {build.wall_s:.2f} s, CPU {build.cpu_s:.2f} s")
        return build

    def wait_for(self, count: int) -> None:
        """Wait until the watcher has built `count` times.

        Raises CommandFailed if the watcher ends, a build fails, or the wait takes longer than `_LONGEST_BUILD_S`.
        """
        deadline = time.monotonic() + _LONGEST_BUILD_S
        while self._count() < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"trtbuild watch:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.005)

    def idle_bytes(self) -> int:
        """Return the memory (PSS) of the watcher and its processes, in bytes. Call it between two builds."""
        return sum(process.memory_full_info().pss for process in self._processes())

    def _count(self) -> int:
        text = self._log.read_text()
        if "failed: " in text:
            raise CommandFailed(f"trtbuild watch:\n{text[-4000:]}")
        return text.count("done: ") + text.count("up to date: ")

    def _cpu_s(self) -> float:
        """Return the CPU time of the watcher and its processes, including those that have ended."""
        all_times = [process.cpu_times() for process in self._processes()]
        totals_s = (times.user + times.system + times.children_user + times.children_system for times in all_times)
        return float(sum(totals_s))

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


@contextmanager
def _watched(session: Session, project: Path) -> Iterator[_Builds]:
    """Start a watcher, wait until it has built the project once, and yield its builds."""
    runtime = session.empty_folder("run")
    runtime.chmod(0o700)
    log_file = session.work / "watch.log"
    with log_file.open("wb") as log:
        process = psutil.Popen(
            [session.trtbuild, "watch"],
            cwd=project,
            env={**session.environment(), "XDG_RUNTIME_DIR": str(runtime)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        builds = _Builds(session, process, log_file)
        session.say("  trtbuild watch builds it, with an empty cache")
        builds.wait_for(1)
        time.sleep(_WAIT_AFTER_BUILD_S)
        yield builds
    finally:
        process.terminate()
        process.wait(60)
