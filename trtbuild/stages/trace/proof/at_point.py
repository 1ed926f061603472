"""Compare the results of program and model at one point, and describe a difference. `proving` has the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor

from trtbuild.core.model.shapes import axes_of_symbol
from trtbuild.default_dtype import default_float32
from trtbuild.errors import OperatorMismatch, SourceError
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.checks import mutation_error, refuse_output_storage
from trtbuild.stages.trace.export.finalizing import FinalProgram
from trtbuild.stages.trace.export.guards.guard import GuardFailure
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.refusals import raise_model_error
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.differences import NAN_ELSEWHERE, difference
from trtbuild.stages.trace.proof.divergence import diverging_line
from trtbuild.stages.trace.proof.returned import ResultMismatch, returned_tensors
from trtbuild.stages.trace.user_code.advice import value_advice
from trtbuild.stages.trace.user_code.frames import Frames, describe_error, first_lines


@dataclass(frozen=True)
class Point:
    """One size for each symbol. `guard_failure` is None if no guard is known to fail at these sizes."""

    sizes: tuple[int, ...]
    guard_failure: GuardFailure | None = None


def prove_point(
    point: Point,
    module: torch.nn.Module,
    final: FinalProgram,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> None:
    """Raise SourceError if the results of program and model differ at `point`, or if the model fails there.

    `weights` are the stored forms of the program's weights, in its order."""
    values = example_tensors(job.inputs, job.shapes.input_shapes(point.sizes))
    problem = _first_problem(values, point, module, final, weights, job, frames)
    # a mask that hides every key of a row makes some implementations of attention return NaN (`proving`, rule 5)
    for fill in (False, True) if any(value.dtype is torch.bool for value in values) else ():
        if problem is None or not problem.endswith(NAN_ELSEWHERE):
            break
        filled = [torch.full_like(value, fill) if value.dtype is torch.bool else value for value in values]
        problem = _first_problem(filled, point, module, final, weights, job, frames)
    if problem is not None:
        raise _frozen_branch_error(point, problem, module, job, frames)


def kept_values_error(job: TraceJob) -> SourceError:
    """The error for a model whose results depend on earlier calls."""
    return SourceError(
        "the model has other results in its second call than in its first, with the same inputs: it keeps a value between "
        "calls, but an engine keeps nothing",
        code="state",
        hint="pass the value as an input and return it, or keep it in a buffer that the field `state` names",
        **job.place("source"),
    )


def _first_problem(
    values: list[torch.Tensor],
    point: Point,
    module: torch.nn.Module,
    final: FinalProgram,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> str | None:
    """The first difference between the results for the inputs `values`; None if they agree.

    Raises SourceError if they cannot be compared, for example because the model fails."""
    model_output = _run_model(point, module, [value.clone() for value in values], job, frames)
    try:
        outputs = run_program(final, weights, values)
    except OperatorMismatch as error:
        raise SourceError(
            f"{error.text}, at {_sizes_text(point, job)}", code="operator-sizes", hint=error.hint, **job.place("source")
        ) from error
    except Exception as error:
        return f"it fails there: {first_lines(describe_error(error), 1)}"
    try:
        expected_tensors = returned_tensors(model_output, final.leaves, final.structure)
    except ResultMismatch as error:
        return str(error)
    leaves = [leaf for leaf in final.leaves if not isinstance(leaf, ConstantLeaf)]
    for number, (index, expected, leaf) in enumerate(zip(final.outputs, expected_tensors, leaves, strict=True)):
        refuse_output_storage(number, expected, job)
        output = outputs[index]
        if isinstance(leaf, NumberLeaf) and leaf.type == "float" and leaf.source_dtype is not None:
            output, expected = output.to(leaf.source_dtype), expected.to(leaf.source_dtype)
        gap = difference(output, expected)
        if gap is not None:
            return f"output {number} has {gap if isinstance(gap, str) else f'a relative difference of {gap:.2g}'}"
    return None


def _run_model(point: Point, module: torch.nn.Module, values: list[torch.Tensor], job: TraceJob, frames: Frames) -> Any:
    state = [("parameter", name, tensor) for name, tensor in module.named_parameters()]
    state += [("buffer", name, tensor) for name, tensor in module.named_buffers()]
    state += [("input", entry.name, value) for entry, value in zip(job.inputs, values, strict=True)]
    versions = [tensor._version for _, _, tensor in state]
    args, kwargs = call_arguments(job.inputs, values)
    try:
        output = module(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise_model_error(module, job, frames)  # if the model also fails at the example, `point` is not the reason
        frames.raise_from(
            error,
            f"the model itself fails at {_sizes_text(point, job)}, which the profiles allow",
            code="eager",
            hint=value_advice(error, job.inputs)
            or (_frozen_hint(point, job) if point.guard_failure else "change the profiles' shapes, or the model"),
            fallback=_place_of_dim(point, job),
        )
    for (kind, name, tensor), version in zip(state, versions, strict=True):
        if tensor._version != version:
            raise mutation_error(kind, name, job)
    if any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(output)):
        raise SourceError(
            "the model uses a tensor that it has kept from the trace, for example in functools.lru_cache: this tensor "
            "has no values",
            code="export",
            hint="keep no tensor outside of modules while torch.compiler.is_compiling() is true",
            **job.place("source"),
        )
    return output


def run_program(final: FinalProgram, weights: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The program's outputs, each once. `FinalProgram.outputs` maps the model's result to them."""
    program = final.program
    values_by_node = dict(zip(program.weight_nodes, weights, strict=True)) | dict(
        zip(program.input_nodes, values, strict=True)
    )
    constants = program.constants
    args = [values_by_node[node] if node in values_by_node else constants[node.name] for node in program.placeholders]
    with default_float32:  # as in later steps
        return list(program.exported.graph_module(*args))


def _frozen_branch_error(
    point: Point, problem: str, module: torch.nn.Module, job: TraceJob, frames: Frames
) -> SourceError:
    assumed = f" (export assumed {point.guard_failure.text})" if point.guard_failure else ""
    place, hint = _place_of_dim(point, job), _frozen_hint(point, job)
    text = (
        f"the traced program is not the model at {_sizes_text(point, job)}: {problem}. The model takes another branch "
    )
    text += f"there than at the example{assumed}, and export kept only one"
    divergence = diverging_line(
        lambda: _call_model(module, point.sizes, job),
        lambda: _call_model(module, example_sizes(job), job),
        frames.is_shown,
    )
    if divergence:
        (file, line), is_here = divergence
        point_text, example_text = _sizes_text(point, job), _sizes_text(Point(example_sizes(job)), job)
        runs_at, does_not_run_at = (point_text, example_text) if is_here else (example_text, point_text)
        text += f": this line runs at {runs_at}, and not at {does_not_run_at}"
        if place:
            hint += f"; the size is declared at {place['file']}:{place['line']}"
        place = {"file": frames.shown_path(file), "line": line}
    return SourceError(text, code="frozen-branch", hint=hint, **place)


def example_sizes(job: TraceJob) -> tuple[int, ...]:
    """The size of each symbol in the example call, with which the model is exported."""
    return tuple(symbol.example for symbol in job.shapes.symbols)


def _call_model(module: torch.nn.Module, sizes: tuple[int, ...], job: TraceJob) -> Any:
    args, kwargs = call_arguments(job.inputs, example_tensors(job.inputs, job.shapes.input_shapes(sizes)))
    return module(*args, **kwargs)


def _frozen_hint(point: Point, job: TraceJob) -> str:
    if point.guard_failure and point.guard_failure.hint:
        return point.guard_failure.hint
    return (
        "leave that size out of the profiles, write the branch with tensors (torch.where, torch.cond), or declare two "
        "models with their own profiles"
    )


def _sizes_text(point: Point, job: TraceJob) -> str:
    plan = job.shapes
    if not plan.symbols:
        return "the declared shapes"
    texts = []
    for number, size in enumerate(point.sizes):
        places = axes_of_symbol(plan, job.inputs, number)
        texts.append(f"{' = '.join(places)} = {size}")
    return ", ".join(texts)


def _place_of_dim(point: Point, job: TraceJob) -> dict[str, Any]:
    """The place in the manifest of the first dim whose size differs from the example's."""
    for number, symbol in enumerate(job.shapes.symbols):
        if point.sizes[number] != symbol.example:
            entry = axes_of_symbol(job.shapes, job.inputs, number)[0].rpartition(".")[0]
            return job.place(f"dims.{symbol.name}", f"inputs.{entry}")
    return job.place("source")


def element_count(point: Point, job: TraceJob) -> int:
    """The number of elements of all inputs at `point`."""
    return sum(map(math.prod, job.shapes.input_shapes(point.sizes)))
