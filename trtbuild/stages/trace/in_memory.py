"""Trace a module that exists in the memory of the user's program, inside this program.

Rules
1. The module is not changed. If some of its tensors are not in main memory, a copy with all tensors in main memory is
   traced. So the graph does not depend on the device, and neither do the keys that are computed from the graph. Tensors of
   ``torch.inference_mode`` are copied, too, because torch.export does not accept them.
2. The gradient mode, autocast, the state of torch's CPU random generator, and the setting for the fast path of
   nn.TransformerEncoder are restored after the trace. Dependencies are not recorded, so a trace is never found in the
   cache. The results of later steps can be found there, because their keys depend on the graph and the weights, not on
   dependencies.
3. A module in training mode is rejected, as in every trace. The result of ``convert_pt2e`` is an exception: a copy of it in
   evaluation mode is traced (`in_evaluation_mode`).
4. A program of torch.export has ranges of sizes already. The ranges of the job must be inside these.
5. A TorchScript module is copied. The copy is traced like a ``torchscript:`` source.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.errors import SourceError
from trtbuild.stages.trace.discovery.operators import custom_operator
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.export import checks
from trtbuild.stages.trace.export.exporting import functionalize
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.quantization.ao_quantizers import has_fake_quantizers, replace_fake_quantizers
from trtbuild.stages.trace.quantization.evaluation_mode import in_evaluation_mode
from trtbuild.stages.trace.quantization.modelopt_quantizers import has_quantizers, replace_modelopt_quantizers
from trtbuild.stages.trace.run import TraceResult, trace_module
from trtbuild.stages.trace.sources import torchscript
from trtbuild.stages.trace.sources.exported_program import module_of_program
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners


def trace_in_memory(model: torch.nn.Module | ExportedProgram, job: TraceJob, project: Path) -> TraceResult:
    """Trace a module, a TorchScript module, or a program of torch.export. The source of `job` is only a label for messages.
    File names in errors are relative to `project`. Raises SourceError."""
    frames = Frames(FileOwners(project), project)
    operators: dict[str, str] = {}

    def implementation(name: str) -> str:
        """Record a custom operator. Returns a constant instead of a digest, because its files are not known."""
        operators[name] = "in memory"
        return operators[name]

    with torch.random.fork_rng(devices=[]), _modes_of_a_trace():
        traced = trace_module(_module_to_trace(model, job, frames), job, frames, implementation)
    traced.interface["operators"] = operators
    if operators:
        described = [custom_operator(name, _registering_module(name)) for name in sorted(operators)]
        traced.interface["custom_operators"] = [operator.to_json() for operator in described]
    return traced


@contextlib.contextmanager
def _modes_of_a_trace() -> Iterator[None]:
    """Set the modes of a trace in place of those of the calling program, and restore these after it. Under autocast, the
    program would have the dtypes of autocast without the casts, and could not be lowered. Packages ignore the caller's
    autocast, too."""
    uses_fast_path = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as modes:
        # the trace of a model with quantizers turns the fast path of nn.TransformerEncoder off
        modes.callback(torch.backends.mha.set_fastpath_enabled, uses_fast_path)
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                modes.enter_context(torch.autocast(device_type, enabled=False))
        yield


def _registering_module(name: str) -> str | None:
    """The module that registers the operator `name` (``mylib.twist.default``); None if it is not known."""
    namespace, operator, _ = name.split(".")
    definition = torch._library.custom_ops.OPDEFS.get(f"{namespace}::{operator}")
    module = getattr(getattr(definition, "_init_fn", None), "__module__", None)
    return module if isinstance(module, str) and module != "__main__" else None


def export_in_memory(model: torch.nn.Module | ExportedProgram, job: TraceJob, project: Path) -> ExportedProgram:
    """Trace `model` as `trace_in_memory` does, and return the program of torch.export, without in-place writes.

    The program takes the arguments of `model`, and can share tensors with it. Its symbols have the ranges of `job`. Raises
    SourceError.
    """
    traced = trace_in_memory(model, job, project)
    if traced.exported is None:
        raise AssertionError("a module is exported")
    with torch.random.fork_rng(devices=[]), _modes_of_a_trace():
        program = functionalize(traced.exported)
    program._range_constraints = {**program.range_constraints, **traced.ranges}  # torch may have traced a wider range
    return program


def _module_to_trace(model: torch.nn.Module | ExportedProgram, job: TraceJob, frames: Frames) -> torch.nn.Module:
    """The module to trace, with its tensors in main memory (rules 1, 3 and 5). Raises SourceError."""
    if isinstance(model, ExportedProgram):
        return _in_main_memory(module_of_program(model))
    if isinstance(model, torch.jit.ScriptModule):
        return torchscript.module_of_script(model, job, frames)
    model = in_evaluation_mode(model, copied=True)
    checks.refuse_training_mode(model, job)
    if has_quantizers(model) or has_fake_quantizers(model):
        model = copy.deepcopy(model)
        replace_modelopt_quantizers(model, job, job.place("source"))
        replace_fake_quantizers(model, job.place("source"))
    return _in_main_memory(model)


# -- the devices of a module's tensors -------------------------------------------------------------------------------


def _in_main_memory(module: torch.nn.Module) -> torch.nn.Module:
    """`module`, or a copy of it whose tensors are ordinary tensors on the CPU (rule 1)."""
    to_copy = {
        id(tensor): tensor for tensor in _all_tensors(module) if tensor.device.type != "cpu" or tensor.is_inference()
    }
    if not to_copy:
        return module
    copies_by_id: dict[int, Any] = {}
    for object_id, tensor in to_copy.items():
        if tensor.device.type == "meta":
            raise SourceError(
                "the module has tensors on the meta device, which hold no values",
                code="weights",
                hint="load its weights first",
            )
        value = tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()
        if isinstance(tensor, torch.nn.Parameter):
            value = torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
        copies_by_id[object_id] = value
    return copy.deepcopy(module, copies_by_id)


def _all_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield all tensors of a module, including those in plain attributes."""
    for submodule in module.modules():
        for values in (submodule._parameters, submodule._buffers, vars(submodule)):
            # a parameter may be None: the bias of ``Linear(…, bias=False)``
            yield from (value for value in (values or {}).values() if isinstance(value, torch.Tensor))


# -- the inputs of a program of torch.export -------------------------------------------------------------------------


@dataclass(frozen=True)
class ProgramAxis:
    """A dynamic axis of an exported program. Its size is `unit` times the value of the symbol `symbol`.

    The size is at least `low` and at most `high` (None without a limit). `example_size` is the size in the call with
    which the program was exported; None if it is unknown."""

    symbol: str
    unit: int
    low: int
    high: int | None
    example_size: int | None


@dataclass(frozen=True)
class ProgramInput:
    """One tensor that an exported program takes."""

    name: str
    keyword: bool
    dtype: str
    shape: tuple[int | ProgramAxis, ...]


def program_inputs(exported: ExportedProgram) -> list[ProgramInput]:
    """The input tensors of a program, positional inputs first. Raises SourceError for an input that is not a tensor, and
    for an axis whose size is neither a number nor a multiple of one symbol."""
    positional, keywords = exported.call_spec.in_spec.children()
    positional_count, keyword_names = positional.num_leaves, list(keywords.context or [])
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    arguments = [s.arg for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    inputs = []
    for number, argument in enumerate(arguments):
        keyword = number >= positional_count
        keyword_number = number - positional_count
        name = keyword_names[keyword_number] if keyword and keyword_number < len(keyword_names) else argument.name
        value = nodes[argument.name].meta.get("val") if argument.name in nodes else getattr(argument, "value", None)
        if not isinstance(value, torch.Tensor):
            raise SourceError(
                f"the exported program takes {name!r} as a value of type {type(value).__name__}, not as a tensor",
                code="signature",
                hint="export it with that value fixed",
            )
        shape = tuple(_program_axis(size, f"{name}.{axis}", exported) for axis, size in enumerate(value.shape))
        inputs.append(ProgramInput(name, keyword, dtype_name(value.dtype), shape))
    return inputs


def _program_axis(size: Any, where: str, exported: ExportedProgram) -> int | ProgramAxis:
    if isinstance(size, int):
        return size
    unit, symbol = size.node.expr.as_coeff_Mul()
    bounds = exported.range_constraints.get(symbol)
    if not symbol.is_Symbol or not unit.is_Integer or unit < 1 or bounds is None:
        raise SourceError(
            f"{where} of the exported program is {size}, which is neither a number nor a multiple of one Dim",
            code="range",
            hint="export it with Dims, or pass the module itself and inputs=[trtbuild.Input(…)]",
        )
    # if the Dim has no upper bound, torch's bound is infinite, or near 2**63
    high = int(bounds.upper) * int(unit) if bounds.upper < 2**62 else None
    example_size = size.node.hint if size.node.has_hint() else None
    return ProgramAxis(str(symbol), int(unit), max(0, int(bounds.lower)) * int(unit), high, example_size)
