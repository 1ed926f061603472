"""Build an engine of ViT-B in a new process with an empty cache, and compare the build with a script without trtbuild.

A second project builds ViT-B with an engine for each layer, and is compared with the same script.
The script, `straight_vit.py`, uses the documented calls of PyTorch and TensorRT-RTX. The script and trtbuild import the
same `models/vit.py`, build for the same SM and profile with the builder's default settings, and write the engine's plan.
The time of imports counts for both. trtbuild also compares the traced program with the eager model, fills its cache and
writes a package. The time of this extra work is not subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import projects
from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.measure import Median, Run, measure_alternately
from benchmarks.session import Session, delete_build, run_counts


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    whole = projects.write_vit(session.folder("vit-whole"), **sizes.vit)
    layered = projects.write_vit(session.folder("vit-layered"), granularity=True, **sizes.vit)
    session.say(f"  {sizes.cold_repeats} times: the script, one engine, an engine for each layer")
    medians = measure_alternately(
        sizes.cold_repeats,
        script=lambda measure_memory: session.script(whole, measure_memory=measure_memory),
        whole=lambda measure_memory: build_cold(session, whole, measure_memory=measure_memory),
        layered=lambda measure_memory: build_cold(session, layered, measure_memory=measure_memory),
    )
    session.note_script(medians["script"])
    script = medians["script"]
    yield from compare("one engine", medians["whole"], script, bound=0.85)
    yield from compare("an engine for each layer", medians["layered"], script, bound=0.65)
    for project, engines in ((whole, 1), (layered, sizes.layers)):
        steps = session.document(project, "build")[1]["totals"]["engine"]
        count = steps["hit"] + steps["run"]
        yield Check(f"{project.name} has {engines} engine(s) or more", count >= engines, f"{count}")


def compare(name: str, ours: Median, script: Median, bound: float) -> Iterator[Row]:
    """Yield the rows of one cold build. `bound` is the largest allowed ratio of wall times."""
    name = f"cold build, {name}"
    yield Ratio(f"{name}: time", Value("trtbuild", ours.wall_s), Value("script", script.wall_s), bound=bound)
    yield Ratio(f"{name}: CPU time", Value("trtbuild", ours.cpu_s), Value("script", script.cpu_s), bound=1.2)
    memory = Value("trtbuild", ours.peak_bytes, "B"), Value("script", script.peak_bytes, "B")
    yield Ratio(f"{name}: peak memory", *memory, bound=1.2)


def build_cold(session: Session, project: Path, *, measure_memory: bool) -> Run:
    """Build a project with an empty cache. Raises RuntimeError if the trace step did not run."""
    delete_build(project, cache=True)
    run, document = session.document(project, "build", measure_memory=measure_memory)
    if run_counts(document).get("trace") != 1:
        raise RuntimeError(f"a cold build ran {run_counts(document)}")
    session.say(f"  {project.name}: {run}")
    return run
