"""The trace step: from a job to its results. It runs in a child process that does nothing else."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.recipes.dependency import Observation
from trtbuild.stages.trace.job import TraceJob

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from trtbuild.stages.program.functional import Program
    from trtbuild.stages.trace.export.arranging import Arranged
    from trtbuild.stages.trace.sources.source_graph import Makers, SourceGraph
    from trtbuild.stages.trace.user_code.frames import Frames


@dataclass
class Traced:
    """The results of a trace.

    `program` contains the bytes of a functional `Program`, `graph` is its canonical text, and `modules` are the module
    path and operator of each of its calls. For a source that is a graph already, `trtbuild.stages.graphs` makes these.
    `weights` are (slot number, value) of the weight inputs, as contiguous CPU tensors. With a ``weights:`` file, only
    the weights that ``state_dict`` does not save are in `weights`. `kept` is the answer of the caller's `Keep` for
    `weights`, None without an answer. `observations` are in the order of first use. `uncacheable` is the reason why the
    result must not be stored, None if it may be stored. `exported` is the result of torch.export, and `ranges` are the
    declared ranges of its symbols. A source that is a graph already has neither.
    """

    program: bytes
    graph: str
    modules: list[tuple[str, str, str]]
    interface: dict[str, Any]
    weights: list[tuple[int, torch.Tensor]]
    kept: Any
    observations: tuple[Observation, ...]
    uncacheable: str | None
    exported: ExportedProgram | None = None
    ranges: Mapping[Any, Any] = field(default_factory=dict)


#: A function that stores weights (slot number, value) and returns a JSON value. It runs in a forked copy of this process
#: during the proof.
Keep = Callable[["list[tuple[int, torch.Tensor]]"], Any]

#: If the copy has not stored the weights after this many seconds, the caller stores them.
_KEEPING_S = 3600.0


@dataclass(frozen=True)
class Started:
    """The state of this process before torch was loaded: the names of its modules, and its environment variables."""

    loaded: frozenset[str]
    environment: Mapping[str, str]


@functools.cache
def prepare() -> Started:
    """Load torch and all modules of this stage, before the first trace. No user code runs. Returns the state of the process
    before that."""
    started = Started(frozenset(sys.modules), dict(os.environ))  # torch sets variables while it is loaded
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # set before torch is loaded: a trace is the same with and without a GPU
    for name in (
        "discovery.discovery",
        "examples",
        "export.arranging",
        "export.checks",
        "export.exporting",
        "export.guards",
        "export.interface",
        "export.changing_sizes",
        "proof.proving",
        "sources.reading",
    ):
        importlib.import_module(f"trtbuild.stages.trace.{name}")
    importlib.import_module("torch.export.pt2_archive")  # torch loads its writer of programs at the first use
    return started


def trace(job: TraceJob, project: Path, keep: Keep | None = None, makers: Makers | None = None) -> Traced:
    """Trace the model of `job`, prove the result, and record its dependencies. Raises SourceError.

    `makers` read sources that are graphs already (``onnx:``, ``network:``). If an error is raised, `keep` may have
    stored weights; no record refers to them then.
    """
    started = prepare()
    import torch

    from trtbuild.stages.trace.discovery.discovery import Discovery
    from trtbuild.stages.trace.examples import seed_everything
    from trtbuild.stages.trace.sources.reading import read
    from trtbuild.stages.trace.sources.source_graph import SourceGraph
    from trtbuild.stages.trace.user_code.frames import Frames

    project = project.resolve()
    discovery = Discovery(project, job.source, started.environment, started.loaded)
    frames = Frames(discovery.places, project)
    seed_everything()
    with torch.no_grad():
        with discovery.recording():
            source = read(job, project, frames, makers)
            if isinstance(source, SourceGraph):
                traced = _traced_graph(source)
            else:
                traced = trace_module(source, job, frames, discovery.implementation, discovery.seen, keep)
        traced.interface["operators"] = discovery.operators
        traced.observations = discovery.observations()
    traced.uncacheable = discovery.uncacheable
    return traced


def _traced_graph(source: SourceGraph) -> Traced:
    """Convert a source that is a graph already. Nothing is exported."""
    return Traced(
        program=source.blob,
        graph=source.text,
        modules=source.names,
        interface=source.interface,
        weights=source.weights,
        kept=None,
        observations=(),
        uncacheable=None,
    )


def trace_module(
    module: torch.nn.Module,
    job: TraceJob,
    frames: Frames,
    implementation: Callable[[str], str] | None = None,
    seen: Callable[[], object] = lambda: None,
    keep: Keep | None = None,
) -> Traced:
    """Trace a loaded module. `implementation` returns the digests of custom operators; `seen` returns a value that
    changes with each new dependency. Raises SourceError."""
    from trtbuild.stages.program.text import module_paths, program_text
    from trtbuild.stages.trace.discovery import hooks
    from trtbuild.stages.trace.export import checks
    from trtbuild.stages.trace.export.arranging import arrange
    from trtbuild.stages.trace.export.changing_sizes import changing_size
    from trtbuild.stages.trace.export.exporting import export
    from trtbuild.stages.trace.export.guards import arguments_by_number, guesses
    from trtbuild.stages.trace.export.interface import interface
    from trtbuild.stages.trace.export.weights import ModuleWeights, fill_unset, refuse_misfit, refuse_unset
    from trtbuild.stages.trace.proof.background import ForkedCall
    from trtbuild.stages.trace.proof.proving import Proof

    refuse_unset(module, job)
    weights = ModuleWeights(module, [name for name, _, _ in job.weights or ()])
    if job.weights is not None:
        refuse_misfit(module, weights, job)
        fill_unset(weights)
    exported = export(module, job, frames)
    job = job.tied(exported.ties)
    checks.refuse_random(exported.raw, job, frames)
    checks.refuse_growth(exported.raw, job, frames)
    checks.refuse_mutation(exported.program, job, exported.raw, frames)
    checks.refuse_odd_outputs(exported.program, job, frames.definition(module.forward))
    arranged = arrange(exported.program, weights, job)
    numbered = arguments_by_number(inspect.signature(module.forward), job.inputs)
    guessed = guesses(exported.guards, numbered, job.shapes, job.inputs, job.points, exported.assumed)
    program, values = arranged.program, _values(arranged, job)

    def kept() -> Any:
        hooks.activate(None)  # the store's files are not dependencies
        return None if keep is None else keep(values)

    with (
        ForkedCall(kept, _KEEPING_S) if keep is not None and values else contextlib.nullcontext() as keeping,
        Proof(module, arranged, guessed, job, frames, seen) as proof,
    ):
        traced = Traced(
            program=_serialized(program, job),
            graph=program_text(program, implementation),
            modules=module_paths(program),
            interface=interface(exported.program, arranged, weights, job, exported.ties),
            weights=values,
            kept=None,
            observations=(),
            uncacheable=None,
            exported=exported.raw,
            ranges=dict(program.exported.range_constraints),
        )
        changed = changing_size(arranged.program, exported.raw, job, frames)
        proof.finish()  # first: if the model itself fails, its own error is raised instead of `changed`
        if changed is not None:
            raise changed
        traced.kept = keeping.answer() if keeping is not None else None
    return traced


def _serialized(program: Program, job: TraceJob) -> bytes:
    """Serialize a program. Raises SourceError if torch cannot serialize one of its calls."""
    from trtbuild.errors import SourceError
    from trtbuild.stages.trace.user_code.frames import first_lines

    try:
        return program.to_bytes()
    except Exception as error:  # torch's SerializeError and others
        raise SourceError(
            f"torch cannot write the traced program: {first_lines(str(error), 1)}",
            code="export",
            hint="leave that call out of forward: torch.export.save cannot write it",
            **job.place("source"),
        ) from error


def _values(arranged: Arranged, job: TraceJob) -> list[tuple[int, torch.Tensor]]:
    from trtbuild.stages.trace.export.weights import plain

    return [
        (slot, plain(weight.value))
        for slot, weight in enumerate(arranged.weights)
        if job.weights is None or not weight.persistent
    ]
