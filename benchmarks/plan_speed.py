"""`trtbuild plan` on a thousand engines: nothing changed, and one source edited.

The bound is a second. doit and dvc stand beside it with what they have for the question "what would run?": `doit
list --all --status` on as many tasks as there are engines, and `dvc status` on a hundred stages (dvc needs seconds
for these; its number is printed as measured, and not scaled). Each of their targets is a copy of one small file
(`peers.py`). For them, too, one source is edited in the second measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.figure import Check, Limit, Row, Value
from benchmarks.measure import Median, Run, run, run_alternately
from benchmarks.null_build import built
from benchmarks.session import Session


def rows(session: Session) -> Iterator[Row]:
    """Plans, and the peers' answers to the same question."""
    sizes = session.sizes
    engines = sizes.models * sizes.targets
    project = built(session, sizes.models)
    copies = peers.copies(session.folder(f"copies-{engines}"), engines)
    stages = peers.stages(session.folder(f"dvc-{sizes.dvc_stages}"), sizes.dvc_stages, session.peer("dvc"))
    run([session.peer("doit"), "-v", "0"], copies)
    candidates = {
        "trtbuild": lambda: session.call(project, "plan"),
        "doit": lambda: run([session.peer("doit"), "list", "--all", "--status"], copies),
        "dvc": lambda: run([session.peer("dvc"), "status"], stages),
    }
    unchanged = run_alternately(sizes.cold_repeats, **candidates)
    yield from _told(f"plan, {engines:,} engines, nothing changed", unchanged, engines, sizes.dvc_stages)

    edited = {
        "trtbuild": project / "models" / f"m{sizes.models // 2:03}.py",
        "doit": copies / "sources" / "0017.txt",
        "dvc": stages / "sources" / "0017.txt",
    }
    before = {path: path.read_text() for path in edited.values() if path.exists()}
    try:
        touched = run_alternately(
            sizes.cold_repeats,
            **{name: _after_an_edit(edited[name], candidate) for name, candidate in candidates.items()},
        )
        shared = project / "models" / "block.py"
        before[shared] = shared.read_text()
        _, document = session.document(project, "plan")
        shared_run = _after_an_edit(shared, candidates["trtbuild"])()
    finally:
        for path, text in before.items():
            path.write_text(text)
    yield from _told(f"plan, {engines:,} engines, one source edited", touched, engines, sizes.dvc_stages)
    traces = document["totals"]["trace"]["run"]
    yield Check("plan after one edit: one trace would run", traces == 1, f"{traces}")
    yield Limit("plan, a source edited that all models share", Value("trtbuild", shared_run.wall_s))


def _told(name: str, found: dict[str, Median], engines: int, stages: int) -> Iterator[Row]:
    note = f"CPU {found['trtbuild'].cpu_s:.2f} s"
    yield Limit(name, Value("trtbuild", found["trtbuild"].wall_s), 1.0, note=note)
    yield Limit(f"{name}: doit", Value(f"list --status of {engines:,} tasks", found["doit"].wall_s))
    yield Limit(f"{name}: dvc", Value(f"status of {stages} stages", found["dvc"].wall_s))


def _after_an_edit(path: Path, candidate: Callable[[], Run]) -> Callable[[], Run]:
    """The candidate, after one more edit of the file."""

    def run_it() -> Run:
        with open(path, "a") as file:
            file.write("# edited\n")
        return candidate()

    return run_it
