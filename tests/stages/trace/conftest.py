"""Jobs for modules, and traces of them: in this process where the graph is the subject, in a child where isolation is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from trtbuild.core.model.shapes import derive, symbol_values
from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange, Source
from trtbuild.stages.trace import TraceJob
from trtbuild.stages.trace.run import Traced, trace_module
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.places import Places

#: The shapes that a test gives for an input: min, opt and max, or one static shape.
Shapes = Mapping[str, Sequence[Any]]


def make_job(
    shapes: Shapes | Sequence[Shapes],
    *,
    inputs: Sequence[Input] | None = None,
    dims: Sequence[NamedDim] = (),
    source: Source | None = None,
    weights: Any = None,
) -> TraceJob:
    """A job for the given profiles. Inputs are float32 and positional unless they are given."""
    profiles = []
    for number, profile in enumerate([shapes] if isinstance(shapes, Mapping) else shapes):
        ranges = tuple((name, _range(shape)) for name, shape in profile.items())
        profiles.append(Profile(f"profile{number}", ranges))
    inputs = tuple(inputs or (Input(name) for name, _ in profiles[0].shapes))
    plan, problems = derive(inputs, dims, profiles)
    assert plan is not None, problems
    points = tuple(dict.fromkeys(symbol_values(plan, p, which) for p in profiles for which in ("min", "max")))
    origins = {f"inputs.{entry.name}": f"trtbuild.yaml:{10 + n}" for n, entry in enumerate(inputs)}
    origins |= {f"dims.{dim.name}": f"trtbuild.yaml:{20 + n}" for n, dim in enumerate(dims)}
    origins |= {"source": "trtbuild.yaml:3", "weights": "trtbuild.yaml:4"}
    return TraceJob(source or Source("python", "m:build"), inputs, plan, points, weights, origins)


def _range(shape: Sequence[Any]) -> ShapeRange:
    minimum, opt, maximum = shape if isinstance(shape[0], Sequence) else (shape, shape, shape)
    return ShapeRange(tuple(minimum), tuple(opt), tuple(maximum))


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def trace_here(module: torch.nn.Module | Callable[..., Any], job: TraceJob) -> Traced:
    """Trace a module in this process, without discovery."""
    if not isinstance(module, torch.nn.Module):
        module = Function(module).eval()
    with torch.no_grad():
        return trace_module(module, job, Frames(Places(), Path(__file__).parents[3]))


@dataclass(frozen=True)
class ChildTrace:
    """The result of a child process: the error's fields, or observations by part."""

    observations: dict[str, str]
    order: list[str]
    uncacheable: str | None
    error: dict[str, Any] | None
    interface: Any
    graph: str


_CHILD = """
import json, sys
from pathlib import Path
sys.path[:] = [p for p in sys.path if p not in ("", str(Path(__file__).parent))]
from trtbuild.errors import SourceError
from trtbuild.stages.trace import TraceJob
from trtbuild.stages.trace.run import trace
job, project, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), Path(sys.argv[3])
try:
    traced = trace(TraceJob.from_json(job), project)
    seen = [[o.dependency.part, o.seen] for o in traced.observations]
    found = {"seen": seen, "uncacheable": traced.uncacheable, "error": None, "interface": traced.interface,
             "graph": traced.graph}
except SourceError as error:
    found = {"seen": [], "uncacheable": None, "interface": None, "graph": "",
             "error": {name: getattr(error, name) for name in ("text", "code", "file", "line", "hint")}}
out.write_text(json.dumps(found))
"""


def trace_in_child(
    job: TraceJob, project: Path, tmp_path: Path, environment: Mapping[str, str] | None = None, prelude: str = ""
) -> ChildTrace:
    """Trace as a build does, in a child process. `prelude` is Python code that runs first there."""
    script, out = tmp_path / "child.py", tmp_path / "found.json"
    script.write_text(textwrap.dedent(prelude) + _CHILD)
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    arguments = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "job.json"), str(project), str(out)]
    done = subprocess.run(
        arguments, cwd=project, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    return ChildTrace(
        dict(found["seen"]),
        [part for part, _ in found["seen"]],
        found["uncacheable"],
        found["error"],
        found["interface"],
        found["graph"],
    )


@pytest.fixture(scope="session")
def job_of() -> Callable[..., TraceJob]:
    return make_job


@pytest.fixture(scope="session")
def traced() -> Callable[..., Traced]:
    return trace_here


@pytest.fixture(scope="session")
def in_child() -> Callable[..., ChildTrace]:
    return trace_in_child
