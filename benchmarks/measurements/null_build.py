"""Measure the time of a build that has nothing to do (a *null build*).

The benchmark runs `trtbuild build` in a large and in a small project. It compares the time with that of a Python process
that only imports json and os (the *floor*), because no useful Python program is faster. For the large project, it also
compares the time with that of GNU make, with as many targets as there are engines.

make looks at two files for each target. trtbuild checks the sources, the installed Python packages, the toolchain and every
output file. `peers.py` describes the project of make, and the other build systems that are compared without a bound.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import peers, projects
from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.measure import Run, run, run_alternately
from benchmarks.session import Session, run_counts

#: Modules outside of the standard library that a null build must not import.
_FORBIDDEN_MODULES = ("click", "pydantic", "yaml", "rich", "torch", "tensorrt_rtx", "diskcache", "xxhash")


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    project = build_project(session, sizes.models)
    engines = sizes.models * sizes.targets
    make_project = peers.write_copy_project(session.folder(f"copies-{engines}"), engines)
    run(["make", "--silent", "-j2"], make_project)
    candidates = {
        "trtbuild": lambda: session.call(project, "build"),
        "make": lambda: run(["make"], make_project),
        "make_shared": lambda: run(["make", "-f", "Shared.mk"], make_project),
        "make_rR": lambda: run(["make", "-rR"], make_project),
        "floor": lambda: _interpreter(make_project),
    }
    if shutil.which("ninja"):
        run(["ninja"], make_project)
        candidates["ninja"] = lambda: run(["ninja"], make_project)
    medians = run_alternately(sizes.repeats, **candidates)
    wall = Value("trtbuild", medians["trtbuild"].wall_s)
    name = f"null build, {engines:,} engines"
    yield Ratio(f"{name}, against make", wall, Value("make", medians["make"].wall_s), bound=0.25)
    cpu = Value("trtbuild", medians["trtbuild"].cpu_s)
    yield Ratio(f"{name}, against make, CPU time", cpu, Value("make", medians["make"].cpu_s))
    yield Ratio(f"{name}, against the interpreter", wall, Value("import json, os", medians["floor"].wall_s))
    floor = Value("import json, os", medians["floor"].cpu_s)
    yield Ratio(f"{name}, against the interpreter, CPU time", cpu, floor, bound=1.5)
    shared = Value("make", medians["make_shared"].wall_s)
    yield Ratio(f"{name}, against make where five targets share a source", wall, shared)
    yield Ratio(f"{name}, against make -rR", wall, Value("make -rR", medians["make_rR"].wall_s))
    if "ninja" in medians:
        yield Ratio(f"{name}, against ninja", wall, Value("ninja", medians["ninja"].wall_s))
    if b"python" in session.trtbuild.open("rb").readline():  # ``--trtbuild`` may name a program that is not Python
        yield _imports(session, project)

    few = build_project(session, sizes.few_models)
    medians = run_alternately(
        2 * sizes.repeats + 1, trtbuild=lambda: session.call(few, "build"), floor=lambda: _interpreter(make_project)
    )
    name = f"null build, {sizes.few_models} models × {sizes.targets} targets"
    wall, floor = Value("trtbuild", medians["trtbuild"].wall_s), Value("import json, os", medians["floor"].wall_s)
    yield Ratio(f"{name}, against the interpreter", wall, floor, bound=1.5)
    cpu = Value("trtbuild", medians["trtbuild"].cpu_s)
    yield Ratio(f"{name}, CPU time", cpu, Value("import json, os", medians["floor"].cpu_s))
    session.call(few, "build", "--json")  # writes the snapshot of this command line (`trtbuild.null_build`)
    medians = run_alternately(sizes.repeats, trtbuild=lambda: session.call(few, "build", "--json"))
    yield Measurement(f"{name}, --json", Value("trtbuild", medians["trtbuild"].wall_s))


def build_project(session: Session, model_count: int) -> Path:
    """Build a project of `model_count` models, and check that a later build runs nothing."""
    targets = session.sizes.targets
    project = projects.write_many(session.folder(f"many-{model_count}x{targets}"), model_count, targets)
    session.say(f"  building {project.name} if it is not built yet (the first time, each model is traced: minutes)")
    session.call(project, "build", timeout_s=4 * 3600)
    session.call(project, "build")  # by now, all files are old enough that trtbuild trusts their times
    _, document = session.document(project, "build")
    if run_counts(document):
        raise RuntimeError(f"a build right after another build ran {run_counts(document)}")
    return project


def _interpreter(cwd: Path) -> Run:
    """Run a Python process that only imports json and os: the floor."""
    return run([sys.executable, "-c", "import json, os"], cwd)


def _imports(session: Session, project: Path) -> Row:
    """Check that a null build imports none of the forbidden modules."""
    code = (
        "import runpy, sys\n"
        f"script = {str(session.trtbuild)!r}\n"
        "sys.argv = [script, 'build']\n"
        "sys.path[0] = script.rpartition('/')[0]\n"
        "try: runpy.run_path(script, run_name='__main__')\n"
        "finally: print('MODULES', *sys.modules)"
    )
    program = run([sys.executable, "-c", code], project, environment=session.environment())
    modules = program.stdout.decode().rpartition("MODULES")[2].split()
    forbidden = [name for name in _FORBIDDEN_MODULES if name in modules]
    return Check(
        "a null build imports the standard library only",
        not forbidden,
        f"imports {', '.join(forbidden)}"
        if forbidden
        else f"{len(modules)} modules, none of {', '.join(_FORBIDDEN_MODULES)}",
    )
