"""Measure how long trtbuild takes to restore all outputs from the cache, after ``dist/`` and ``.trtbuild/`` were deleted.

The time is compared with that of `cp` and `sha256sum`, with which people copy and check files. trtbuild first plans the
project, then joins large outputs from chunks and verifies each output. Neither torch nor TensorRT can be imported in these
runs. All files are in the page cache.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import projects
from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.measure import Run, run, run_alternately
from benchmarks.session import TENSORRT, TORCH, Session, delete_build, run_counts

_COPY_AND_HASH = 'cp -r dist "$1" && find "$1" -type f -exec sha256sum {} +'


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    for name, granularity in (("one engine", False), ("an engine for each layer", True)):
        project = projects.write_vit(
            session.folder("vit-layered" if granularity else "vit-whole"), granularity=granularity, **sizes.vit
        )
        session.say(f"  building {project.name}, unless it is built")
        session.call(project, "build")
        yield from _measure_restore(session, project, f"outputs from the cache, {name}")


def _measure_restore(session: Session, project: Path, name: str) -> Iterator[Row]:
    files = _contents(project / "dist")
    medians = run_alternately(
        max(3, session.sizes.cold_repeats),
        peer=lambda: _copy_and_hash(session, project),
        trtbuild=lambda: _restore(session, project),
    )
    size = sum(size for _, size, _ in files)
    wall, peer_wall = Value("trtbuild", medians["trtbuild"].wall_s), Value("cp + sha256sum", medians["peer"].wall_s)
    yield Ratio(name, wall, peer_wall, bound=3.0, note=f"{size / 1e6:.0f} MB in {len(files)} files")
    cpu, peer_cpu = Value("trtbuild", medians["trtbuild"].cpu_s), Value("cp + sha256sum", medians["peer"].cpu_s)
    yield Ratio(f"{name}: CPU time", cpu, peer_cpu)
    yield Check(f"{name}: the same files", _contents(project / "dist") == files, f"{len(files)} files")
    found = "built with a torch and a TensorRT that cannot be imported"
    yield Check(f"{name}: neither torch nor TensorRT", True, found)  # otherwise a build above would have failed


def _restore(session: Session, project: Path) -> Run:
    """Delete the outputs and the state of the project, and build it. Raises RuntimeError if a step runs."""
    delete_build(project, cache=False)
    build, document = session.document(project, "build", poison=TORCH + TENSORRT)
    if run_counts(document):
        raise RuntimeError(f"a build from the cache ran {run_counts(document)}")
    return build


def _copy_and_hash(session: Session, project: Path) -> Run:
    copy = session.work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copied = run(["sh", "-c", _COPY_AND_HASH, "sh", copy], project)
    shutil.rmtree(copy)
    return copied


def _contents(folder: Path) -> list[tuple[str, int, str]]:
    """Return the path, the size in bytes and the SHA-256 of every file."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files.append((str(path.relative_to(folder)), path.stat().st_size, digest))
    return files
