"""Measure the time of a build that has nothing to do.

The benchmark runs `trtbuild build`, the console script, as a user does. Its peer is GNU make with as many targets as
there are engines. For a small project, its peer is an interpreter of the same virtual environment that imports json and
os and ends: no Python program can be faster. All are separate processes. They run alternately, and the same code times
them from start to end.

The work differs: make looks at two files for each target (see `peers.py`, also for the measurements without a bound).
trtbuild checks the sources, the distributions, the toolchain and every output file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import peers, projects
from benchmarks.figure import Check, Limit, Ratio, Row, Value
from benchmarks.measure import Run, run, run_alternately
from benchmarks.session import Session, ran

#: Modules that a null build must not import (it may import the standard library only).
_FORBIDDEN = ("click", "pydantic", "yaml", "rich", "torch", "tensorrt_rtx", "diskcache", "xxhash")


def rows(session: Session) -> Iterator[Row]:
    """Null builds of many engines and of few models."""
    sizes = session.sizes
    project = built(session, sizes.models)
    engines = sizes.models * sizes.targets
    copies = peers.copies(session.folder(f"copies-{engines}"), engines)
    run(["make", "--silent", "-j2"], copies)
    candidates = {
        "ours": lambda: session.call(project, "build"),
        "make": lambda: run(["make"], copies),
        "make_shared": lambda: run(["make", "-f", "Shared.mk"], copies),
        "make_rR": lambda: run(["make", "-rR"], copies),
        "floor": lambda: _interpreter(copies),
    }
    if shutil.which("ninja"):
        run(["ninja"], copies)
        candidates["ninja"] = lambda: run(["ninja"], copies)
    medians = run_alternately(sizes.repeats, **candidates)
    ours = Value("trtbuild", medians["ours"].wall_s)
    name = f"null build, {engines:,} engines"
    yield Ratio(f"{name}, against make", ours, Value("make", medians["make"].wall_s), 0.25)
    cpu = Value("trtbuild", medians["ours"].cpu_s)
    yield Ratio(f"{name}, against make, CPU time", cpu, Value("make", medians["make"].cpu_s))
    yield Ratio(f"{name}, against the interpreter", ours, Value("import json, os", medians["floor"].wall_s))
    shared = Value("make", medians["make_shared"].wall_s)
    yield Ratio(f"{name}, against make where five targets share a source", ours, shared)
    yield Ratio(f"{name}, against make -rR", ours, Value("make -rR", medians["make_rR"].wall_s))
    if "ninja" in medians:
        yield Ratio(f"{name}, against ninja", ours, Value("ninja", medians["ninja"].wall_s))
    if b"python" in session.trtbuild.open("rb").readline():  # skip this for a wrapper that ``--trtbuild`` names
        yield _imports(session, project)

    few = built(session, sizes.few_models)
    medians = run_alternately(
        2 * sizes.repeats + 1, ours=lambda: session.call(few, "build"), floor=lambda: _interpreter(copies)
    )
    name = f"null build, {sizes.few_models} models × {sizes.targets} targets"
    ours, floor = Value("trtbuild", medians["ours"].wall_s), Value("import json, os", medians["floor"].wall_s)
    yield Ratio(f"{name}, against the interpreter", ours, floor, 1.5)
    cpu = Value("trtbuild", medians["ours"].cpu_s)
    yield Ratio(f"{name}, CPU time", cpu, Value("import json, os", medians["floor"].cpu_s))
    session.call(few, "build", "--json")  # another command line has another snapshot: this call writes it
    medians = run_alternately(sizes.repeats, ours=lambda: session.call(few, "build", "--json"))
    yield Limit(f"{name}, --json", Value("trtbuild", medians["ours"].wall_s))


def built(session: Session, models: int) -> Path:
    """Build a project of `models` × the session's targets, and check that the next build runs nothing."""
    project = projects.many(session.folder(f"many-{models}x{session.sizes.targets}"), models, session.sizes.targets)
    session.say(f"  building {project.name}, unless it is (a trace for each model: minutes, the first time)")
    session.call(project, "build", timeout_s=4 * 3600)
    session.call(project, "build")  # after this, the times of recently edited files are trusted
    _, document = session.document(project, "build")
    if ran(document):
        raise RuntimeError(f"a build after a build ran {ran(document)}")
    return project


def _interpreter(cwd: Path) -> Run:
    return run([sys.executable, "-c", "import json, os"], cwd)


def _imports(session: Session, project: Path) -> Row:
    """Check the modules that a null build imports, which the interpreter lists."""
    code = (
        "import runpy, sys\n"
        f"script = {str(session.trtbuild)!r}\n"
        "sys.argv = [script, 'build']\n"
        "sys.path[0] = script.rpartition('/')[0]\n"
        "try: runpy.run_path(script, run_name='__main__')\n"
        "finally: print('MODULES', *sys.modules)"
    )
    done = run([sys.executable, "-c", code], project, environment=session.environment())
    modules = done.stdout.decode().rpartition("MODULES")[2].split()
    forbidden = [name for name in _FORBIDDEN if name in modules]
    return Check(
        "a null build imports the standard library only",
        not forbidden,
        f"imports {', '.join(forbidden)}" if forbidden else f"{len(modules)} modules, none of {', '.join(_FORBIDDEN)}",
    )
