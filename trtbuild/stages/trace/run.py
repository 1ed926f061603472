"""The trace step, from a job to what it leaves. Runs in a child process that is used for nothing else."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.recipes.dependency import Observation
from trtbuild.stages.trace.job import TraceJob

if TYPE_CHECKING:
    import torch

    from trtbuild.stages.program.functional import Program
    from trtbuild.stages.trace.export.arranging import Arranged
    from trtbuild.stages.trace.sources.graph_forms import Makers
    from trtbuild.stages.trace.user_code.frames import Frames


@dataclass
class Traced:
    """What a trace leaves.

    `program` are the bytes of a functional `Program`, `graph` is its canonical text, `modules` the module path and
    operator of each of its calls; of a model that comes as another graph, they are what `trtbuild.stages.graphs` makes.
    `weights` are (slot number, value) of the weight inputs, as contiguous CPU tensors: all of them, or with a ``weights:``
    file those that no file can hold; `kept` is what the caller's `Keep` answered for them, None where it did not.
    `observations` are in the order of first use. `uncacheable` says why the result must
    not be kept, None where it may be.
    """

    program: bytes
    graph: str
    modules: list[tuple[str, str, str]]
    interface: dict[str, Any]
    weights: list[tuple[int, torch.Tensor]]
    kept: Any
    observations: tuple[Observation, ...]
    uncacheable: str | None


#: Keeps weights (slot number, value), in a copy of this process and beside the proof; its answer is a JSON value.
Keep = Callable[["list[tuple[int, torch.Tensor]]"], Any]

#: Weights that are not kept after this many seconds are left to the caller.
_KEEPING_S = 3600.0


@dataclass(frozen=True)
class Started:
    """What this process was before torch: the names of the modules that it had loaded for itself, and its variables."""

    loaded: frozenset[str]
    environment: Mapping[str, str]


@functools.cache
def prepare() -> Started:
    """Load torch and all of this stage, which otherwise happens with the first trace; what this process was before.
    No code of the user's runs."""
    started = Started(frozenset(sys.modules), dict(os.environ))  # torch sets variables, some while it is loaded
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded: a trace is the same with and without a GPU
    for name in (
        "discovery.discovery",
        "examples",
        "export.arranging",
        "export.checks",
        "export.exporting",
        "export.guards",
        "export.interface",
        "export.ranks",
        "proof.proving",
        "sources.loading",
    ):
        importlib.import_module(f"trtbuild.stages.trace.{name}")
    importlib.import_module("torch.export.pt2_archive")  # what writes programs: torch loads it when it is first used
    return started


def trace(job: TraceJob, project: Path, keep: Keep | None = None, makers: Makers | None = None) -> Traced:
    """Trace the model of `job`, prove the result, and say what it depended on. Raises SourceError.

    `makers` make the models that come as a graph of their own (``onnx:``, ``network:``). `keep` may have kept weights when
    an error is raised; nothing names them then.
    """
    started = prepare()
    import torch

    from trtbuild.stages.trace.discovery.discovery import Discovery
    from trtbuild.stages.trace.examples import seed_everything
    from trtbuild.stages.trace.sources.loading import load
    from trtbuild.stages.trace.user_code.frames import Frames

    project = project.resolve()
    discovery = Discovery(project, job.source, started.environment, started.loaded)
    frames = Frames(discovery.places, project)
    seed_everything()
    with torch.no_grad():
        with discovery.recording():
            if job.source.form == "program":
                module = load(job, project, frames)
                traced = trace_module(module, job, frames, discovery.implementation, discovery.seen, keep)
            else:
                traced = _given(job, project, frames, makers)
        traced.interface["operators"] = discovery.operators
        traced.observations = discovery.observations()
    traced.uncacheable = discovery.uncacheable
    return traced


def _given(job: TraceJob, project: Path, frames: Frames, makers: Makers | None) -> Traced:
    """A model that comes as a graph of its own: nothing is exported."""
    if makers is None:
        raise AssertionError("whoever traces such a model hands in what makes it")
    if job.source.form == "onnx":
        from trtbuild.stages.trace.sources.onnx_source import read_onnx

        given = read_onnx(job, project, makers.onnx)
    else:
        from trtbuild.stages.trace.sources.network_source import define_network

        given = define_network(job, project, frames, makers)
    form = job.source.form
    return Traced(
        program=given.blob,
        graph=makers.text(form, given.blob),
        modules=makers.names(form, given.blob),
        interface=given.interface,
        weights=given.weights,
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
    """Trace a module that is loaded already. `implementation` gives the digests of custom operators; `seen` tells what user
    code was seen to depend on. Raises SourceError."""
    from trtbuild.stages.program.text import module_paths, program_text
    from trtbuild.stages.trace.discovery import hooks
    from trtbuild.stages.trace.export import checks
    from trtbuild.stages.trace.export.arranging import arrange
    from trtbuild.stages.trace.export.exporting import export
    from trtbuild.stages.trace.export.guards import arguments_by_number, guesses
    from trtbuild.stages.trace.export.interface import interface
    from trtbuild.stages.trace.export.ranks import changing_rank
    from trtbuild.stages.trace.export.weights import ModuleWeights, fill_unset, refuse_misfit, refuse_unset
    from trtbuild.stages.trace.proof.background import Aside
    from trtbuild.stages.trace.proof.proving import Proof

    refuse_unset(module, job)
    weights = ModuleWeights(module, [name for name, _, _ in job.weights or ()])
    if job.weights is not None:
        refuse_misfit(module, weights, job)
        fill_unset(weights)
    exported = export(module, job, frames)
    checks.refuse_random(exported.raw, job, frames)
    checks.refuse_mutation(exported.program, job, exported.raw, frames)
    checks.refuse_odd_outputs(exported.program, job, frames.definition(module.forward))
    arranged = arrange(exported.program, weights, job)
    numbered = arguments_by_number(inspect.signature(module.forward), job.inputs)
    guessed = guesses(exported.guards, numbered, job.shapes, job.inputs, job.points)
    program, values = arranged.program, _values(arranged, job)

    def kept() -> Any:
        hooks.activate(None)  # the store's files are no dependencies
        return None if keep is None else keep(values)

    with (
        Aside(kept, _KEEPING_S) if keep is not None and values else contextlib.nullcontext() as keeping,
        Proof(module, arranged, guessed, job, frames, seen) as proof,
    ):
        traced = Traced(
            program=_written(program, job),
            graph=program_text(program, implementation),
            modules=module_paths(program),
            interface=interface(exported.program, arranged, weights, job),
            weights=values,
            kept=None,
            observations=(),
            uncacheable=None,
        )
        changed = changing_rank(arranged.program, exported.raw, job, frames)
        proof.finish()  # a model that fails by itself says so in its own words
        if changed is not None:
            raise changed
        traced.kept = keeping.answer() if keeping is not None else None
    return traced


def _written(program: Program, job: TraceJob) -> bytes:
    """The bytes of a program. Raises SourceError where torch has no form for something that it calls."""
    from trtbuild.errors import SourceError
    from trtbuild.stages.trace.user_code.frames import first_lines

    try:
        return program.to_bytes()
    except Exception as error:  # torch's SerializeError, and what its parts raise
        raise SourceError(
            f"torch cannot write the traced program: {first_lines(str(error), 1)}",
            code="export",
            hint="leave that call out of forward: torch.export.save has no form for it",
            **job.place("source"),
        ) from error


def _values(arranged: Arranged, job: TraceJob) -> list[tuple[int, torch.Tensor]]:
    from trtbuild.stages.trace.export.weights import plain

    return [
        (slot, plain(weight.value))
        for slot, weight in enumerate(arranged.weights)
        if job.weights is None or not weight.persistent
    ]
