"""Prove a trace: compare program and model at the ends of every profile, and at sizes that break a guard.

A *point* is a size for each symbol.

Rules
1. The points are the example, the min and max of every profile, and sizes at which guards fail (`guards`). Program and
   model are compared once at each point.
2. Model and program get the same seeded inputs. Dtypes, shapes and the places of NaN must be equal. The largest
   difference, relative to the largest number, must be at most `TOLERANCES` (`differences`). Integers, bools and constants
   must be equal. A float that the model reads from a tensor (``item``) is compared in the tensor's dtype.
3. Values are always compared at the smallest point. If comparing values at the other points would take long, their flows
   are compared instead (`dataflow`): model and program must call the same operators on the same values. This proof is
   stronger, and takes milliseconds. If the flows of a point differ, values are compared there, too. The flows are compared
   in a forked copy of this process. For a model with many weights, values and flows are compared at the same time.
4. A call must not write to its inputs or to the module's weights and buffers. (A branch could do so at one size only.)
5. If only the places of NaN differ, the bool inputs are also tried as all False and as all True. One of the two is a mask
   that hides no key of an attention. A random mask may hide all keys of a row, and PyTorch's implementations of attention
   return different values for such a row.
6. The program runs on the stored form of the weights, like all later steps.
7. The results of operators from outside PyTorch must have the sizes that their fake implementations declare. An operator
   without a kernel for the CPU gets a substitute (`trtbuild.stages.program.cpu_kernels`), for the model and the program.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from trtbuild.core.model.shapes import axes_of_symbol
from trtbuild.errors import OperatorMismatch, SourceError
from trtbuild.stages.trace.examples import call_arguments, example_tensors
from trtbuild.stages.trace.export.arranging import ArrangedProgram
from trtbuild.stages.trace.export.checks import mutation_error, refuse_output_storage
from trtbuild.stages.trace.export.exporting import raise_model_error
from trtbuild.stages.trace.export.guards import GuardFailure
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.weights import identity, stored_form
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.background import ForkedCall
from trtbuild.stages.trace.proof.dataflow import Flows, WeightKeys
from trtbuild.stages.trace.proof.differences import NAN_ELSEWHERE, difference
from trtbuild.stages.trace.proof.divergence import diverging_line
from trtbuild.stages.trace.proof.returned import ResultMismatch, returned_tensors
from trtbuild.stages.trace.user_code.advice import value_advice
from trtbuild.stages.trace.user_code.frames import Frames, describe_error, first_lines

#: For a model with more bytes of weights than this, flows are always compared (rule 3), and nothing on entry.
LARGE_WEIGHTS_BYTES = 64 << 20

#: If comparing values at all other points takes more seconds than this, by an estimate, flows are compared first (rule 3).
FLOWS_WORTHWHILE_S = 1.0


@dataclass(frozen=True)
class Point:
    """The sizes of the symbols at one point. `guard_failure` describes the guard that fails there, None if the point is
    tried for another reason only."""

    sizes: tuple[int, ...]
    guard_failure: GuardFailure | None = None


class Proof:
    """Compares program and model: at the smallest point on entry, and at the other points in a forked copy or in `finish`.
    A large model is compared in `finish` only, so that the caller can announce the program before.

    `dependency_state` returns a value that changes with each new dependency of user code.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arranged: ArrangedProgram,
        guard_failures: Sequence[GuardFailure],
        job: TraceJob,
        frames: Frames,
        dependency_state: Callable[[], object] = lambda: None,
    ) -> None:
        self._module, self._arranged, self._job, self._frames, self._dependency_state = (
            module,
            arranged,
            job,
            frames,
            dependency_state,
        )
        points = {sizes: Point(sizes) for sizes in dict.fromkeys((_example_sizes(job), *job.points))}
        for failure in guard_failures:
            point = points.setdefault(failure.sizes, Point(failure.sizes, failure))
            if point.guard_failure is None:
                points[failure.sizes] = Point(failure.sizes, failure)
        # small points first: they show most errors in milliseconds
        self._points = sorted(points.values(), key=lambda p: (_element_count(p, job), p.sizes))
        self._weights = [stored_form(weight.value) for weight in arranged.weights]
        #: Whether the model is large (`LARGE_WEIGHTS_BYTES`).
        self.is_large = sum(weight.nbytes for weight in self._weights) > LARGE_WEIGHTS_BYTES
        self._comparison: ForkedCall | None = None

    def __enter__(self) -> Proof:
        """Compare values at the smallest point. If this would take long at the other points, begin to compare flows there,
        in a forked copy. A large model is compared in `finish` only. Raises SourceError."""
        if self.is_large:
            return self
        first, *others = self._points
        duration_s = self._compare(first)
        total = sum(_element_count(point, self._job) for point in others)
        if duration_s * total / max(_element_count(first, self._job), 1) > FLOWS_WORTHWHILE_S:
            self._comparison = ForkedCall(self._equal_flows).__enter__()
        return self

    def finish(self) -> None:
        """Compare values at each point that was not compared, and whose flows were not found to be equal. Raises
        SourceError."""
        first, *others = self._points
        if self.is_large:
            self._comparison = ForkedCall(self._equal_flows).__enter__() if others else None
            self._compare(first)
        answer = self._comparison.answer() if self._comparison is not None else None
        for point, is_equal in zip(others, answer or [False] * len(others), strict=True):
            if not is_equal:
                self._compare(point)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._comparison is not None:
            self._comparison.__exit__(kind, error, tb)

    def _compare(self, point: Point) -> float:
        """Compare values at one point. Returns the duration in seconds, without the garbage collection, which takes equally
        long at every point."""
        started = time.monotonic()
        _prove_point(point, self._module, self._arranged, self._weights, self._job, self._frames)
        duration_s = time.monotonic() - started
        gc.collect()
        return duration_s

    def _equal_flows(self) -> list[bool]:
        """For each point after the first, whether the flows of model and program are equal there."""
        module_slots = {id(weight): str(slot) for slot, weight in enumerate(self._arranged.weights)}
        slots = {identity(value): str(slot) for slot, value in enumerate(self._weights)}

        def weight_key(tensor: torch.Tensor) -> str | None:
            weight = self._arranged.module_weights.find(tensor)
            return slots.get(identity(tensor)) if weight is None else module_slots.get(id(weight))

        before = self._dependency_state()
        answers = []
        for point in self._points[1:]:
            equal = False
            with contextlib.suppress(Exception):
                equal = self._has_equal_flow(point, weight_key)
            # if the call used a new dependency, only this copy knows it, so the original process must compare values
            answers.append(equal and self._dependency_state() == before)
        return answers

    def _has_equal_flow(self, point: Point, weight_keys: WeightKeys) -> bool:
        flows = Flows()
        values = example_tensors(self._job.inputs, self._job.shapes.input_shapes(point.sizes))

        def call_model(inputs: list[torch.Tensor]) -> Any:
            args, kwargs = call_arguments(self._job.inputs, inputs)
            return returned_tensors(self._module(*args, **kwargs), self._arranged.leaves)

        expected = flows.describe_results(call_model, values, weight_keys)
        actual = flows.describe_results(
            lambda inputs: _run_program(self._arranged, self._weights, inputs), values, weight_keys
        )
        return [actual[index] for index in self._arranged.outputs] == expected


def _prove_point(
    point: Point,
    module: torch.nn.Module,
    arranged: ArrangedProgram,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> None:
    values = example_tensors(job.inputs, job.shapes.input_shapes(point.sizes))
    problem = _first_problem(values, point, module, arranged, weights, job, frames)
    # if a mask hides every key of a row, some implementations of attention return NaN, and others do not (rule 5)
    for fill in (False, True) if any(value.dtype is torch.bool for value in values) else ():
        if problem is None or not problem.endswith(NAN_ELSEWHERE):
            break
        filled = [torch.full_like(value, fill) if value.dtype is torch.bool else value for value in values]
        problem = _first_problem(filled, point, module, arranged, weights, job, frames)
    if problem is not None:
        raise _frozen_branch_error(point, problem, module, job, frames)


def _first_problem(
    values: list[torch.Tensor],
    point: Point,
    module: torch.nn.Module,
    arranged: ArrangedProgram,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> str | None:
    """The first difference between program and model on `values`; None if they agree. Raises SourceError if the model
    fails."""
    model_output = _run_model(point, module, [value.clone() for value in values], job, frames)
    try:
        outputs = _run_program(arranged, weights, values)
    except OperatorMismatch as error:
        raise SourceError(
            f"{error.text}, at {_sizes_text(point, job)}", code="operator-sizes", hint=error.hint, **job.place("source")
        ) from error
    except Exception as error:
        return f"it fails there: {first_lines(describe_error(error), 1)}"
    try:
        expected_tensors = returned_tensors(model_output, arranged.leaves)
    except ResultMismatch as error:
        return str(error)
    leaves = [leaf for leaf in arranged.leaves if not isinstance(leaf, ConstantLeaf)]
    for number, (index, expected, leaf) in enumerate(zip(arranged.outputs, expected_tensors, leaves, strict=True)):
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
        raise_model_error(module, job, frames)  # if the model also fails at the example, this size is not the reason
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
    return output


def _run_program(
    arranged: ArrangedProgram, weights: list[torch.Tensor], values: list[torch.Tensor]
) -> list[torch.Tensor]:
    program = arranged.program
    values_by_node = dict(zip(program.weight_nodes, weights, strict=True)) | dict(
        zip(program.input_nodes, values, strict=True)
    )
    constants = program.constants
    args = [values_by_node[node] if node in values_by_node else constants[node.name] for node in program.placeholders]
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
        lambda: _call_model(module, _example_sizes(job), job),
        frames.is_shown,
    )
    if divergence:
        (file, line), is_here = divergence
        size_texts = [_sizes_text(point, job), _sizes_text(Point(_example_sizes(job)), job)]
        text += f": this line runs at {size_texts[not is_here]}, and not at {size_texts[is_here]}"
        if place:
            hint += f"; the size is declared at {place['file']}:{place['line']}"
        place = {"file": frames.shown_path(file), "line": line}
    return SourceError(text, code="frozen-branch", hint=hint, **place)


def _example_sizes(job: TraceJob) -> tuple[int, ...]:
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


def _element_count(point: Point, job: TraceJob) -> int:
    total = 0
    for shape in job.shapes.input_shapes(point.sizes):
        count = 1
        for size in shape:
            count *= size
        total += count
    return total
