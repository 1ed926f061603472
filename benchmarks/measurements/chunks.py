"""Measure how much space the cache saves because it splits files into chunks and stores equal chunks only once.

One module is built for three GPU architectures and two sets of profiles. A plain folder of build products would contain
the six engines' plans and one copy of the weights. The benchmark compares the sum of their sizes with the total length of
all files in the cache. It also prints the size of the cache on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import projects
from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.session import Session, delete_build

_SMS = (86, 89, 120)


def rows(session: Session) -> Iterator[Row]:
    six_engines = project(session)
    session.say("  building six engines with an empty cache")
    delete_build(six_engines, cache=True)
    _, document = session.document(six_engines, "build")
    plans = [step["outputs"]["plan"] for step in document["steps"] if step["stage"] == "engine"]
    different = {plan["sha256"] for plan in plans}
    yield Check("six different plans", len(plans) == 6 == len(different), f"{len(plans)}, {len(different)} different")
    weights = (six_engines / "weights" / "vit.safetensors").stat().st_size
    plain = sum(plan["size"] for plan in plans) + weights
    files = [path.stat() for path in _files(six_engines / "cache")]
    stored = Value("cache", sum(file.st_size for file in files), "B")
    yield Ratio(
        "chunks: plans and weights, relative to the cache",
        Value("six plans and the weights", plain, "B"),
        stored,
        bound=4.5,
        at_least=True,
    )
    yield Measurement("chunks: the cache on disk", Value("", sum(file.st_blocks for file in files) * 512, "B"))


def project(session: Session) -> Path:
    sizes = session.sizes
    return projects.write_vit(
        session.folder("vit-chunks"),
        layers=sizes.chunk_layers,
        hidden=sizes.hidden,
        image=sizes.image,
        weights=True,
        sms=_SMS,
        profile_sets=2,
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
