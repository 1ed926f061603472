"""Jobs of the trace step, and functions that run them in this process or in a child process."""

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

from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import pairs_of_separate_symbols, proof_points
from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange, Source
from trtbuild.core.values.codec import encode
from trtbuild.stages.trace import TraceJob
from trtbuild.stages.trace.run import TraceResult, trace_module
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

#: Name of an input → its min, opt and max shape, or one static shape.
Shapes = Mapping[str, Sequence[Any]]


def make_job(
    shapes: Shapes | Sequence[Shapes],
    *,
    inputs: Sequence[Input] | None = None,
    dims: Sequence[NamedDim] = (),
    source: Source | None = None,
    weights: Any = None,
) -> TraceJob:
    """A job for profiles with these shapes. By default, inputs are float32 and positional."""
    profiles = []
    for number, profile in enumerate([shapes] if isinstance(shapes, Mapping) else shapes):
        ranges = tuple((name, _range(shape)) for name, shape in profile.items())
        profiles.append(Profile(f"profile{number}", ranges))
    inputs = tuple(inputs or (Input(name) for name, _ in profiles[0].shapes))
    plan, problems = derive(inputs, dims, profiles)
    assert plan is not None, problems
    origins = {f"inputs.{entry.name}": f"trtbuild.yaml:{10 + n}" for n, entry in enumerate(inputs)}
    origins |= {f"dims.{dim.name}": f"trtbuild.yaml:{20 + n}" for n, dim in enumerate(dims)}
    origins |= {"source": "trtbuild.yaml:3", "weights": "trtbuild.yaml:4"}
    # Symbols that must be equal may be tied: they become one symbol. `separate_pairs` has the pairs that must not be tied,
    # because the min, opt or max of their symbols differ in some profile.
    points, separate_pairs = proof_points(plan, profiles), pairs_of_separate_symbols(plan, profiles)
    return TraceJob(source or Source("python", "m:build"), inputs, plan, points, weights, origins, separate_pairs)


def _range(shape: Sequence[Any]) -> ShapeRange:
    minimum, opt, maximum = shape if isinstance(shape[0], Sequence) else (shape, shape, shape)
    return ShapeRange(tuple(minimum), tuple(opt), tuple(maximum))


class Function(torch.nn.Module):
    """A module that calls a function with all arguments of the module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def trace_in_process(module: torch.nn.Module | Callable[..., Any], job: TraceJob) -> TraceResult:
    """Trace a module in this process, without recording the files that the module reads."""
    if not isinstance(module, torch.nn.Module):
        module = Function(module).eval()
    with torch.no_grad():
        return trace_module(module, job, Frames(FileOwners(), Path(__file__).parents[3]))


@dataclass(frozen=True)
class ChildTrace:
    """The result of a trace in a child process. After an error, only `error` (the fields of the error) has a value.

    `observations` maps dependencies to their states, and `order` lists them in the order of first use.
    """

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
from trtbuild.core.values.codec import decode
from trtbuild.errors import SourceError
from trtbuild.stages.trace import TraceJob
from trtbuild.stages.trace.run import trace
job, project, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), Path(sys.argv[3])
try:
    traced = trace(decode(TraceJob, job), project)
    seen = [[o.dependency.part, o.state] for o in traced.observations]
    result = {"seen": seen, "uncacheable": traced.uncacheable, "error": None, "interface": traced.interface,
              "graph": traced.graph}
except SourceError as error:
    result = {"seen": [], "uncacheable": None, "interface": None, "graph": "",
              "error": {name: getattr(error, name) for name in ("text", "code", "file", "line", "hint")}}
out.write_text(json.dumps(result))
"""


def trace_in_child(
    job: TraceJob, project: Path, tmp_path: Path, environment: Mapping[str, str] | None = None, prelude: str = ""
) -> ChildTrace:
    """Trace in a child process, as in a build. The child runs the Python code `prelude` first."""
    script, out = tmp_path / "child.py", tmp_path / "result.json"
    script.write_text(textwrap.dedent(prelude) + _CHILD)
    (tmp_path / "job.json").write_text(json.dumps(encode(job)))
    arguments = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "job.json"), str(project), str(out)]
    completed = subprocess.run(
        arguments, cwd=project, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    result = json.loads(out.read_text())
    return ChildTrace(
        dict(result["seen"]),
        [part for part, _ in result["seen"]],
        result["uncacheable"],
        result["error"],
        result["interface"],
        result["graph"],
    )


@pytest.fixture(scope="session")
def job_of() -> Callable[..., TraceJob]:
    return make_job


@pytest.fixture(scope="session")
def traced() -> Callable[..., TraceResult]:
    return trace_in_process


@pytest.fixture(scope="session")
def in_child() -> Callable[..., ChildTrace]:
    return trace_in_child
