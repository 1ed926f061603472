"""Run the trace step. In a build, this happens in a child process that does nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.recipes.dependency import Observation
from trtbuild.stages.trace.job import TraceJob

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from trtbuild.stages.program.functional import Program
    from trtbuild.stages.trace.export.finalizing import FinalProgram
    from trtbuild.stages.trace.export.state import ModuleState, StateBuffer
    from trtbuild.stages.trace.export.weights import ModuleWeights, Weight
    from trtbuild.stages.trace.sources.source_graph import GraphFunctions, SourceGraph
    from trtbuild.stages.trace.storing import RefuseWeights, StoreWeights, WeightStorage
    from trtbuild.stages.trace.user_code.frames import Frames


@dataclass
class TraceResult:
    """The results of a trace.

    `program` is a serialized `Program`, and `graph` is its text without names (the canonical text). `modules` has three
    texts for each operator call: the path of its module, the operator, and all modules around the call. For a source that
    is a graph already (``onnx:``, ``network:``), `trtbuild.stages.graphs` makes these three fields.

    `weights` has the slot number and the value of each weight, then those of each state buffer. Values are contiguous CPU
    tensors. With a ``weights:`` file, `weights` has only the tensors that ``state_dict`` does not save. `stored` is what
    the caller's `StoreWeights` returned for each of `weights`; None if the caller has to store them.

    `observations` are the states of the dependencies, in the order of first use. `uncacheable` is the reason why the result
    must not be stored; None if it may be stored. `exported` is the result of torch.export, and `ranges` maps its symbols to
    their declared ranges. For a source that is a graph already, `exported` is None and `ranges` is empty.
    """

    program: bytes
    graph: str
    modules: list[tuple[str, str, str]]
    interface: dict[str, Any]
    weights: list[tuple[int, torch.Tensor]]
    stored: list[Any] | None
    observations: tuple[Observation, ...]
    uncacheable: str | None
    exported: ExportedProgram | None = None
    ranges: Mapping[Any, Any] = field(default_factory=dict)


#: A function that receives the results of a trace before the proof has ended. These results have no observations yet.
Announce = Callable[["TraceResult"], None]


@dataclass(frozen=True)
class ProcessState:
    """The names of the loaded modules and the environment variables of this process before it loaded torch."""

    modules: frozenset[str]
    environment: dict[str, str]


@functools.cache
def prepare() -> ProcessState:
    """Load torch and the modules of this stage, before the first trace. No user code runs."""
    process_state = ProcessState(frozenset(sys.modules), dict(os.environ))  # loading torch changes os.environ
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # set before torch is loaded: a trace is the same with and without a GPU
    for name in (
        "discovery.discovery",
        "examples",
        "export.finalizing",
        "export.checks",
        "export.exporting",
        "export.guards",
        "export.interface",
        "export.changing_sizes",
        "proof.proving",
        "sources.reading",
        "storing",
    ):
        importlib.import_module(f"trtbuild.stages.trace.{name}")
    importlib.import_module("torch.export.pt2_archive")  # torch loads its writer of programs at the first use
    importlib.import_module("trtbuild.stages.trace.user_code.owners").read_installed_records()
    return process_state


def note_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment in the result of `prepare`. Call this in a process that was forked after `prepare`: the
    process has other environment variables."""
    noted = prepare().environment
    noted.clear()
    noted.update(environment)


def trace(
    job: TraceJob,
    project: Path,
    store_weights: StoreWeights | None = None,
    graph_functions: GraphFunctions | None = None,
    quantizers: bytes | None = None,
    refuse_weights: RefuseWeights = lambda weights: None,
    announce: Announce = lambda traced: None,
) -> TraceResult:
    """Trace the model of `job`, compare the program with the model, and record the dependencies. Raises SourceError.

    `store_weights` stores weights during the trace; None if the caller stores them afterwards. `refuse_weights` receives
    weights before they are stored. It may raise InsufficientResources. `graph_functions` are the functions for sources that
    are graphs already. `quantizers` are the result of a calibration. If the model is large and calls no custom operators,
    `announce` receives the results before the comparison has ended.

    Raises UnfitLibraries if the source does not begin with the imports that `preloading.preload` has executed in this
    process. After an error, weights may have been stored that no record refers to.
    """
    process_state = prepare()
    import torch

    from trtbuild.stages.trace.discovery.preloading import begin_trace
    from trtbuild.stages.trace.quantization.attaching import attach_quantizers
    from trtbuild.stages.trace.sources.reading import read
    from trtbuild.stages.trace.sources.source_graph import SourceGraph
    from trtbuild.stages.trace.user_code.frames import Frames

    project = project.resolve()
    begun = begin_trace(project, job.source, process_state.environment, process_state.modules)
    discovery = begun.discovery
    frames = Frames(discovery.owners, project)

    def refuse_weights_unrecorded(weights: Sequence[torch.Tensor]) -> None:
        with discovery.own_work():
            refuse_weights(weights)

    def announce_unrecorded(traced: TraceResult) -> None:
        if not discovery.operators:  # custom operators are described only at the end of the recording
            begun.check_leading_imports()  # before later steps use the announced results
            traced.interface["operators"] = {}
            with discovery.own_work():
                announce(traced)

    with torch.no_grad():
        with begun.recording:
            source = read(job, project, frames, graph_functions)
            if isinstance(source, SourceGraph):
                traced = _trace_graph(source)
            else:
                if quantizers is not None:
                    attach_quantizers(source, quantizers, job)
                traced = trace_module(
                    source,
                    job,
                    frames,
                    discovery.implementation_digest,
                    discovery.dependency_state,
                    store_weights,
                    refuse_weights_unrecorded,
                    announce_unrecorded,
                )
        traced.interface["operators"] = discovery.operators
        if discovery.operators:
            traced.interface["custom_operators"] = discovery.custom_operators()
        traced.observations = discovery.observations()
    traced.uncacheable = discovery.uncacheable
    return traced


def _trace_graph(source: SourceGraph) -> TraceResult:
    return TraceResult(
        program=source.blob,
        graph=source.text,
        modules=source.names,
        interface=source.interface,
        weights=source.weights,
        stored=None,
        observations=(),
        uncacheable=None,
    )


def trace_module(
    module: torch.nn.Module,
    job: TraceJob,
    frames: Frames,
    implementation_digest: Callable[[str], str] | None = None,
    dependency_state: Callable[[], object] = lambda: None,
    store_weights: StoreWeights | None = None,
    refuse_weights: RefuseWeights = lambda weights: None,
    announce: Announce = lambda traced: None,
) -> TraceResult:
    """Trace a loaded module. Raises SourceError.

    `implementation_digest` returns the digest of the implementation of a custom operator, by its name. `dependency_state`
    returns a value that changes with each new dependency."""
    from trtbuild.stages.trace.export.state import declare_state
    from trtbuild.stages.trace.export.weights import (
        ModuleWeights,
        fill_unset_weights,
        refuse_unfit_weights_file,
        refuse_unset_weights,
    )
    from trtbuild.stages.trace.storing import WeightStorage

    refuse_unset_weights(module, job)
    weights = ModuleWeights(module, [name for name, _, _ in job.weights or ()])
    if job.weights is not None:
        refuse_unfit_weights_file(module, weights, job)
        fill_unset_weights(weights, job.state)
    state, job = declare_state(module, weights, job)
    with WeightStorage(store_weights, refuse_weights) as storage:
        storage.begin_early(module, weights, job)
        return _export_and_prove(
            module, weights, state, job, frames, implementation_digest, dependency_state, storage, announce
        )


def _export_and_prove(
    module: torch.nn.Module,
    weights: ModuleWeights,
    state: ModuleState,
    job: TraceJob,
    frames: Frames,
    implementation_digest: Callable[[str], str] | None,
    dependency_state: Callable[[], object],
    storage: WeightStorage,
    announce: Announce,
) -> TraceResult:
    from trtbuild.stages.program.cpu_kernels import substitute_kernels
    from trtbuild.stages.program.custom_operators import schemas_in
    from trtbuild.stages.program.text import module_paths, program_text
    from trtbuild.stages.trace.export import checks
    from trtbuild.stages.trace.export.changing_sizes import changing_size_error
    from trtbuild.stages.trace.export.custom_operators import checked_program, refuse_custom_calls
    from trtbuild.stages.trace.export.exporting import export
    from trtbuild.stages.trace.export.finalizing import finalize_program
    from trtbuild.stages.trace.export.guards.guard import arguments_as_input_numbers, guard_failures
    from trtbuild.stages.trace.export.interface import interface
    from trtbuild.stages.trace.export.state import refuse_state
    from trtbuild.stages.trace.proof.proving import Proof
    from trtbuild.stages.trace.proof.state import prove_state

    exported = export(module, job, frames)
    job = job.tied(exported.ties)  # symbols that must be equal in the model become one symbol
    # reject programs that an engine cannot compute
    checks.refuse_random_operators(exported.raw, job, frames)
    refuse_custom_calls(exported.raw, job, frames)
    checks.refuse_growing_resize(exported.raw, job, frames)
    checks.refuse_mutation(exported.program, job, exported.raw, frames)
    checks.refuse_output_kinds(exported.program, job, frames.definition_place(module.forward))
    final = finalize_program(exported.program, weights, job)
    refuse_state(final, state, job)
    # find sizes at which guards (conditions on sizes that torch has assumed) fail: the proof tries these sizes
    arguments = arguments_as_input_numbers(inspect.signature(module.forward), job.inputs)
    failures = guard_failures(exported.guards, arguments, job.shapes, job.inputs, job.points, exported.assumptions)
    # forked copies of this process store the weights during the proof
    program, values = final.program, _weights_to_store(final, state, job)
    storage.begin([value for _, value in values])
    with (
        substitute_kernels(schemas_in(program.exported.graph_module)),
        Proof(
            module, replace(final, program=checked_program(program, job)), failures, job, frames, dependency_state
        ) as proof,
    ):
        traced = TraceResult(
            program=_serialize_program(program, job),
            graph=program_text(program, implementation_digest),
            modules=module_paths(program),
            interface=interface(exported.program, final, weights, job, exported.ties, state.buffers),
            weights=values,
            stored=None,
            observations=(),
            uncacheable=None,
            exported=exported.raw,
            ranges=dict(program.exported.range_constraints),
        )
        size_error = changing_size_error(final.program, exported.raw, job, frames)
        if size_error is None and proof.is_large:
            traced.stored = storage.results()
            announce(traced)
        proof.finish()  # first: if the model itself fails, its own error is raised instead of `size_error`
        if size_error is not None:
            raise size_error
        prove_state(module, state, job)
        if traced.stored is None:
            traced.stored = storage.results()
    return traced


def _serialize_program(program: Program, job: TraceJob) -> bytes:
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


def _weights_to_store(final: FinalProgram, state: ModuleState, job: TraceJob) -> list[tuple[int, torch.Tensor]]:
    from trtbuild.stages.trace.export.weights import stored_form

    slots: list[Weight | StateBuffer] = [*final.weights, *state.buffers]
    return [
        # the buffers of a state are copied, because `prove_state` calls the module, which writes to them
        (slot, stored_form(weight.value).clone() if slot >= len(final.weights) else stored_form(weight.value))
        for slot, weight in enumerate(slots)
        if job.weights is None or not weight.persistent
    ]
