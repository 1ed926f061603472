"""Measure `trtbuild plan` on a thousand engines: when nothing has changed, and after an edit of one source.

The commands of doit and dvc that show what would run have rows, too: `doit list --all --status` on as many tasks as there
are engines, and `dvc status` on only a hundred stages, because it takes seconds. `peers.py` describes the projects.
One source in each of these projects is edited, too.

The last rows measure a project with ten times as many engines, whose results are copies (`clones.py`). The CPU time may
grow at most tenfold, and the time and the memory have limits.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import peers, projects
from benchmarks.clones import write_clones
from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.measure import Median, Run, measure_alternately, run, run_alternately
from benchmarks.measurements.null_build import build_project
from benchmarks.session import Session
from trtbuild.core.recipes import keys


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    engines = sizes.models * sizes.targets
    project = build_project(session, sizes.models)
    copies = peers.write_copy_project(session.folder(f"copies-{engines}"), engines)
    stages = peers.write_dvc_project(
        session.folder(f"dvc-{sizes.dvc_stages}"), sizes.dvc_stages, session.peer_program("dvc")
    )
    run([session.peer_program("doit"), "-v", "0"], copies)
    candidates = {
        "trtbuild": lambda: session.call(project, "plan"),
        "doit": lambda: run([session.peer_program("doit"), "list", "--all", "--status"], copies),
        "dvc": lambda: run([session.peer_program("dvc"), "status"], stages),
    }
    session.call(project, "plan")  # writes a snapshot of the output; the next calls check it instead of planning
    unchanged = run_alternately(sizes.cold_repeats, **candidates)
    yield from _report(f"plan, {engines:,} engines, nothing changed", unchanged, engines, sizes.dvc_stages, bound_s=0.4)
    compared = run_alternately(
        sizes.repeats,
        trtbuild=candidates["trtbuild"],
        python=lambda: run([sys.executable, "-c", "import json, os"], project),
    )
    plan, floor = Value("trtbuild", compared["trtbuild"].cpu_s), Value("import json, os", compared["python"].cpu_s)
    yield Ratio(f"plan, {engines:,} engines, nothing changed, CPU time", plan, floor)

    edited = {
        "trtbuild": project / "models" / f"m{sizes.models // 2:03}.py",
        "doit": copies / "sources" / "0017.txt",
        "dvc": stages / "sources" / "0017.txt",
    }
    original_texts = {path: path.read_text() for path in edited.values() if path.exists()}
    try:
        edited_medians = run_alternately(
            sizes.cold_repeats,
            **{name: _with_edit(edited[name], candidate) for name, candidate in candidates.items()},
        )
        shared = project / "models" / "block.py"
        original_texts[shared] = shared.read_text()
        _, document = session.document(project, "plan")
        shared_run = _with_edit(shared, candidates["trtbuild"])()
    finally:
        for path, text in original_texts.items():
            path.write_text(text)
    yield from _report(
        f"plan, {engines:,} engines, one source edited", edited_medians, engines, sizes.dvc_stages, bound_s=1.0
    )
    traces = document["totals"]["trace"]["run"]
    yield Check("plan after one edit: one trace would run", traces == 1, f"{traces}")
    yield Measurement("plan, a source edited that all models share", Value("trtbuild", shared_run.wall_s))
    yield from _large(session)


def _large(session: Session) -> Iterator[Row]:
    """Measure the plan of a large project after an edit: time, memory, and the growth of the CPU time."""
    sizes = session.sizes
    small, large = build_project(session, sizes.models), session.folder(f"many-{sizes.cloned_models}x{sizes.targets}")
    versions_file, versions = large / "step-versions.json", json.dumps(dict(keys.STEP_VERSIONS))
    if not versions_file.exists() or versions_file.read_text() != versions:  # new step versions need new records
        shutil.rmtree(large, ignore_errors=True)
        session.say(f"  copying the records of {small.name} (the first time: minutes)")
        shutil.copytree(small, large, dirs_exist_ok=True, symlinks=True)
    write_clones(large, sizes.cloned_models, sizes.models, sizes.targets)
    versions_file.write_text(versions)
    session.call(large, "plan")  # reads all new files before the measurement
    runs = measure_alternately(
        sizes.cold_repeats,
        small=lambda measure_memory: _with_edit(
            small / "models/m000.py", lambda: session.call(small, "plan", measure_memory=measure_memory)
        )(),
        large=lambda measure_memory: _with_edit(
            large / "models/m000.py", lambda: session.call(large, "plan", measure_memory=measure_memory)
        )(),
    )
    for project in (small, large):  # undo the edits
        projects.write_many(project, sizes.models if project is small else sizes.cloned_models, sizes.targets)
    name = f"plan, {sizes.cloned_models * sizes.targets:,} engines, one source edited"
    yield Measurement(name, Value("trtbuild", runs["large"].wall_s), bound=5.0, note=f"CPU {runs['large'].cpu_s:.2f} s")
    yield Measurement(f"{name}, memory", Value("trtbuild", runs["large"].peak_bytes, "B"), bound=200e6)
    fewer = Value(f"{sizes.models * sizes.targets:,} engines", runs["small"].cpu_s)
    growth = sizes.cloned_models / sizes.models
    yield Ratio(f"{name}, growth of the CPU time", Value("trtbuild", runs["large"].cpu_s), fewer, bound=growth)


def _report(name: str, medians: dict[str, Median], engines: int, stages: int, bound_s: float) -> Iterator[Row]:
    note = f"CPU {medians['trtbuild'].cpu_s:.2f} s"
    yield Measurement(name, Value("trtbuild", medians["trtbuild"].wall_s), bound=bound_s, note=note)
    yield Measurement(f"{name}: doit", Value(f"list --status of {engines:,} tasks", medians["doit"].wall_s))
    yield Measurement(f"{name}: dvc", Value(f"status of {stages} stages", medians["dvc"].wall_s))


def _with_edit(path: Path, candidate: Callable[[], Run]) -> Callable[[], Run]:
    """Return a function that edits the file, and then runs the candidate."""

    def edit_and_run() -> Run:
        with open(path, "a") as file:
            file.write("# edited\n")
        return candidate()

    return edit_and_run
