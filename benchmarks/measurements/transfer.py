"""Measure a team cache: the bytes that a fine-tune transfers, six engines on a remote, and the cost of a dead remote.

The working remote (a cache on another machine) is nginx on loopback. Its access log counts the bytes. The *author* and the
*colleague* are two copies of a project, each with its own cache.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.measure import run
from benchmarks.measurements import chunks, dead_remotes
from benchmarks.nginx import Nginx, run_nginx
from benchmarks.session import Session, run_counts

#: The number of a layer in the middle of the model.
_LAYER = 5


def rows(session: Session) -> Iterator[Row]:
    yield from dead_remotes.rows(session)
    yield from _six_engines(session)
    for granularity in (True, False):
        yield from _fine_tune(session, granularity=granularity)


def _fine_tune(session: Session, *, granularity: bool) -> Iterator[Row]:
    """Change the weights of one layer. Build as the author (the build also pushes), and then as the colleague."""
    name = "an engine for each layer" if granularity else "one engine"
    short = "layers" if granularity else "whole"
    author = projects.write_vit(
        session.folder(f"vit-team-{short}"), granularity=granularity, weights=True, **session.sizes.vit
    )
    layer = min(_LAYER, session.sizes.layers - 1)
    weights = author / "weights" / "vit.safetensors"
    session.say(f"  building {author.name}, unless it is built")
    session.call(author, "build")
    with run_nginx(session.empty_folder(f"nginx-{short}")) as server:
        _call(session, author, server, "cache", "push")
        colleague = _checkout(session, author)
        first = _build(session, colleague, server)
        yield Check(f"colleague, {name}: runs nothing", not run_counts(first), f"ran: {run_counts(first) or 'nothing'}")

        projects.replace_weights(weights, layer)
        earlier_count = len(server.requests())
        _build(session, author, server)
        sent = sum(
            request.received
            for request in server.requests()[earlier_count:]
            if request.method == "PUT" and request.status < 300
        )
        shutil.copy2(weights, colleague / "weights" / "vit.safetensors")
        earlier_count = len(server.requests())
        second = _build(session, colleague, server)
        moved = sum(
            request.sent
            for request in server.requests()[earlier_count:]
            if request.method == "GET" and request.status == 200
        )
    changed = Value("changed weights", _layer_bytes(weights, layer), "B")
    row_name = f"one layer's weights of {session.sizes.layers}, {name}"
    yield Ratio(f"{row_name}: bytes to a colleague", Value("moved", moved, "B"), changed, bound=1.2)
    yield Ratio(f"{row_name}: bytes of the upload", Value("sent, with headers", sent, "B"), changed)
    yield Check(
        f"{row_name}: the colleague runs nothing", not run_counts(second), f"ran: {run_counts(second) or 'nothing'}"
    )
    same = _contents(author / "dist") == _contents(colleague / "dist")
    yield Check(f"{row_name}: the same outputs", same, f"{len(_contents(author / 'dist'))} files")
    shutil.rmtree(colleague)


def _six_engines(session: Session) -> Iterator[Row]:
    """Push the project of `chunks` to an empty remote, and pull it as the colleague."""
    project = chunks.project(session)
    session.say(f"  building {project.name}, unless it is built")
    _, document = session.document(project, "build")
    plans = {step["outputs"]["plan"]["sha256"]: step["outputs"]["plan"]["size"] for step in _engines(document)}
    yield Check("six engines on a remote: six different plans", len(plans) == 6, f"{len(plans)} different")
    with run_nginx(session.empty_folder("nginx-six")) as server:
        _call(session, project, server, "cache", "push")
        files = [path.stat() for kind in ("ac", "cas") for path in (server.root / kind).rglob("*") if path.is_file()]
        stored = Value("all that the remote holds", sum(file.st_size for file in files), "B")
        yield Ratio("six engines on a remote", stored, Value("their sum", sum(plans.values()), "B"), bound=0.25)
        yield Measurement(
            "six engines on a remote: on disk", Value("", sum(file.st_blocks for file in files) * 512, "B")
        )
        copy = _checkout(session, project)
        pulled = _build(session, copy, server)
        pulled_plans = {step["outputs"]["plan"]["sha256"] for step in _engines(pulled)}
        same = not run_counts(pulled) and pulled_plans == set(plans)
        yield Check("six engines on a remote: pulled, the same six", same, f"ran: {run_counts(pulled) or 'nothing'}")
        shutil.rmtree(copy)


def _checkout(session: Session, project: Path) -> Path:
    """Copy a project without its cache, its outputs and its state. The copy is the checkout of the colleague."""
    copy = session.empty_folder(f"{project.name}-colleague")
    shutil.rmtree(copy)
    shutil.copytree(project, copy, ignore=shutil.ignore_patterns("cache", "dist", ".trtbuild", ".benchmark*"))
    return copy


def _engines(document: Any) -> list[Any]:
    return [step for step in document["steps"] if step["stage"] == "engine"]


def _build(session: Session, project: Path, server: Nginx) -> Any:
    return _call(session, project, server, "build")


def _call(session: Session, project: Path, server: Nginx, *arguments: str) -> Any:
    """Run trtbuild with the remote, and return its JSON document. Raises RuntimeError if trtbuild warns."""
    environment = {**session.environment(), "TRTBUILD_REMOTES": f"team=rw:{server.url}"}
    command = run([session.trtbuild, *arguments, "--json"], project, environment=environment)
    document = json.loads(command.stdout)
    if document.get("warnings"):
        raise RuntimeError(f"{' '.join(arguments)}: {document['warnings']}")
    return document


def _layer_bytes(weights: Path, layer: int) -> int:
    from safetensors.numpy import load_file

    return sum(tensor.nbytes for name, tensor in load_file(weights).items() if f"layers.{layer}." in name)


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
