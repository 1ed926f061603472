"""Measure builds after one layer of twelve has changed: either its weights (in a new weights file) or its source.

The builds are compared with the script `straight_vit.py`, which builds an engine without trtbuild. A user without trtbuild
runs the whole script again after each change. The script creates random weights where trtbuild reads a file.

Two checks prove that a build with new weights does not import torch. First, PYTHONPATH begins with a torch that raises an
error when it is imported, and the build must succeed. Second, no process of the build may map a library of torch into its
memory. The second check includes the engine workers, which do not inherit PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import projects
from benchmarks.figure import Check, Ratio, Row, Value
from benchmarks.measure import Median, Run
from benchmarks.session import TORCH, Session, delete_build, run_counts

#: The number of a layer in the middle.
_LAYER = 5
#: Each of at most five edits gives the layer another activation function. So the cache has no results for the edited layer.
_ACTIVATIONS = ("ReLU", "ELU", "Tanh", "Sigmoid", "Softplus")


def rows(session: Session) -> Iterator[Row]:
    sizes = session.sizes
    layer = min(_LAYER, sizes.layers - 1)
    project = projects.write_vit(session.folder("vit-weights"), granularity=True, weights=True, **sizes.vit)
    projects.undo_edits(project)
    session.say("  building it with an empty cache, so that no results of an earlier run are found")
    delete_build(project, cache=True)
    session.call(project, "build")
    script = session.script_median(project)
    weights = project / "weights" / "vit.safetensors"

    builds = [
        _build_with_new_weights(session, project, weights, layer, measure_memory=measure_memory)
        for measure_memory in (*[False] * sizes.cold_repeats, True)
    ]
    ours = Median.of([run for run, _ in builds])
    name = f"one layer's weights of {sizes.layers}"
    yield Ratio(f"{name}: time", Value("trtbuild", ours.wall_s), Value("script", script.wall_s), bound=0.05)
    yield Ratio(f"{name}: CPU time", Value("trtbuild", ours.cpu_s), Value("script", script.cpu_s))
    yield Ratio(
        f"{name}: peak memory", Value("trtbuild", ours.peak_bytes, "B"), Value("script", script.peak_bytes, "B")
    )
    yield _steps(
        f"{name}: no trace, no convert, one engine step", builds[-1][1], {"trace": 0, "convert": 0, "engine": 1}
    )
    projects.replace_weights(weights, layer)
    done = session.call(project, "build", poison=TORCH, watched=("libtorch",), sample_s=0.02)
    found = f"built with a torch that cannot be imported; mapped: {', '.join(sorted(done.mapped)) or 'none'}"
    yield Check(f"{name}: no torch in any process", not done.mapped, found)

    edited = []
    for number in range(sizes.cold_repeats):
        projects.edit_layer(project, layer, _ACTIVATIONS[number % len(_ACTIVATIONS)])
        edited.append(session.document(project, "build"))
    projects.undo_edits(project)
    ours = Median.of([run for run, _ in edited])
    name = f"one layer's source of {sizes.layers}"
    yield Ratio(f"{name}: time", Value("trtbuild", ours.wall_s), Value("script", script.wall_s), bound=0.5)
    yield Ratio(f"{name}: CPU time", Value("trtbuild", ours.cpu_s), Value("script", script.cpu_s))
    yield _steps(f"{name}: one trace, one engine step", edited[0][1], {"trace": 1, "engine": 1})


def _build_with_new_weights(
    session: Session, project: Path, weights: Path, layer: int, *, measure_memory: bool
) -> tuple[Run, Any]:
    projects.replace_weights(weights, layer)
    return session.document(project, "build", measure_memory=measure_memory)


def _steps(name: str, document: Mapping[str, Any], expected: Mapping[str, int]) -> Check:
    counts = run_counts(document)
    found = ", ".join(f"{stage} {count}" for stage, count in counts.items())
    return Check(name, all(counts.get(stage, 0) == count for stage, count in expected.items()), f"ran: {found}")
