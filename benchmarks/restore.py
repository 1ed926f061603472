"""Everything is deleted but the cache: how long until the outputs are back?

Against `cp` of the same bytes and `sha256sum` of the copy, one after the other, on the same file system: a person who
fetches files from a cache by hand copies them and checks them. Each output of the peer is one file; trtbuild joins its
outputs from chunks, verifies each and plans the project first. Neither torch nor TensorRT can be imported in these runs.
The page cache is warm on both sides.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import projects
from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.measure import Run, run, run_alternately
from benchmarks.session import TENSORRT, TORCH, Session, forget_build, ran

_COPY_AND_HASH = 'cp -r dist "$1" && find "$1" -type f -exec sha256sum {} +'


def rows(session: Session) -> Iterator[Row]:
    """ViT-B as one engine, and as an engine for each layer."""
    sizes = session.sizes
    for name, granularity in (("one engine", False), ("an engine for each layer", True)):
        project = projects.vit(
            session.folder("vit-layered" if granularity else "vit-whole"), granularity=granularity, **sizes.vit
        )
        session.say(f"  building {project.name}, unless it is")
        session.call(project, "build")
        yield from _restored(session, project, f"outputs from the cache, {name}")


def _restored(session: Session, project: Path, name: str) -> Iterator[Row]:
    before = _contents(project / "dist")
    found = run_alternately(
        max(3, session.sizes.cold_repeats),
        peer=lambda: _copy_and_hash(session, project),
        ours=lambda: _restore(session, project),
    )
    size = sum(size for _, size, _ in before)
    ours, peer = Value("trtbuild", found["ours"].wall_s), Value("cp + sha256sum", found["peer"].wall_s)
    yield Ratio(name, ours, peer, 3.0, note=f"{size / 1e6:.0f} MB in {len(before)} files")
    ours, peer = Value("trtbuild", found["ours"].cpu_s), Value("cp + sha256sum", found["peer"].cpu_s)
    yield Ratio(f"{name}: CPU time", ours, peer)
    yield Check(f"{name}: the same files", _contents(project / "dist") == before, f"{len(before)} files")
    said = "built with a torch and a TensorRT that cannot be imported"
    yield Check(
        f"{name}: neither torch nor TensorRT", True, said
    )  # a build that needs one fails, and ends the benchmark


def _restore(session: Session, project: Path) -> Run:
    forget_build(project, cache=False)
    done, document = session.document(project, "build", poison=TORCH + TENSORRT)
    if ran(document):
        raise RuntimeError(f"a build from the cache ran {ran(document)}")
    return done


def _copy_and_hash(session: Session, project: Path) -> Run:
    copy = session.work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    done = run(["sh", "-c", _COPY_AND_HASH, "sh", copy], project)
    shutil.rmtree(copy)
    return done


def _contents(folder: Path) -> list[tuple[str, int, str]]:
    """Path, size in bytes and SHA-256 of every file."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append((str(path.relative_to(folder)), path.stat().st_size, digest))
    return found
