"""ViT-B from sources to an engine, from a clean process and with an empty cache, against a straight script.

The script (`straight_vit.py`) is what a good engineer writes with the documented calls. Both import the same
`models/vit.py`, build for the same SM and profile with the builder's default settings, and write a plan; imports
are counted on both sides. trtbuild also compares the traced program with the eager model, keeps everything in its
cache and writes a package; nothing of that is subtracted. Time is wall time; memory is the peak of the process
tree's PSS. Medians.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import projects
from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.measure import Median, Run, run_alternately
from benchmarks.session import Session, forget_build, ran


def rows(session: Session) -> Iterator[Row]:
    """One engine, and one engine for each layer."""
    sizes = session.sizes
    whole = projects.vit(session.folder("vit-whole"), **sizes.vit)
    layered = projects.vit(session.folder("vit-layered"), granularity=True, **sizes.vit)
    session.say(f"  {sizes.cold_repeats} times: the script, one engine, an engine for each layer")
    found = run_alternately(
        sizes.cold_repeats,
        script=lambda: session.script(whole, session.work / "straight"),
        whole=lambda: _cold(session, whole),
        layered=lambda: _cold(session, layered),
    )
    session.note_script(found["script"])
    script = found["script"]
    yield from _compared("one engine", found["whole"], script, 1.0)
    yield from _compared("an engine for each layer", found["layered"], script, 0.6)
    for project, engines in ((whole, 1), (layered, sizes.layers)):
        steps = session.document(project, "build")[1]["totals"]["engine"]
        count = steps["hit"] + steps["run"]
        yield Check(f"{project.name} has {engines} engine(s) or more", count >= engines, f"{count}")


def _compared(name: str, ours: Median, script: Median, bound: float) -> Iterator[Row]:
    name = f"cold build, {name}"
    yield Ratio(f"{name}: time", Value("trtbuild", ours.wall_s), Value("script", script.wall_s), bound)
    yield Ratio(f"{name}: CPU time", Value("trtbuild", ours.cpu_s), Value("script", script.cpu_s))
    memory = Value("trtbuild", ours.peak_bytes, "B"), Value("script", script.peak_bytes, "B")
    yield Ratio(f"{name}: peak memory", *memory, 1.0)


def _cold(session: Session, project: Path) -> Run:
    forget_build(project, cache=True)
    done, document = session.document(project, "build", memory=True)
    if ran(document).get("trace") != 1:
        raise RuntimeError(f"a cold build ran {ran(document)}")
    session.say(f"  {project.name}: {done}")
    return done
