"""Prove a trace: the functional program equals the model, at the ends of every profile and at sizes that break a guard.

Rules
1. The points are the example, the min and max of every profile, and for each guard that export does not report
   (`guards`) a size at which it fails. Each point is compared once.
2. Model and program get the same seeded inputs. Dtypes, shapes and the places of NaN must be equal. The largest
   difference must be at most `TOLERANCE` (`differences`) of the largest number. Integers, bools and constants must be
   equal. A float that the model reads from a tensor (``item``) is compared in the tensor's type. Numbers are always
   compared at the smallest point. If the other points would take long, it is enough that model and program call the same
   operators on the same values there (`dataflow`). This is a stronger proof, and takes milliseconds. If it fails, numbers
   are compared.
3. A call may not write to its inputs or to the module's weights and buffers (a branch could do so at one size only).
4. If the places of NaN are all that differs, bool inputs are tried as all False and as all True, too. One of them is a
   mask that hides no key. The random mask of a single key may hide it, and PyTorch's implementations of attention differ
   in what they return for a row without a key.
5. The program runs on the stored form of the weights, like all later steps.
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
from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.export.arranging import Arranged
from trtbuild.stages.trace.export.checks import mutated, refuse_elsewhere
from trtbuild.stages.trace.export.exporting import raise_eager
from trtbuild.stages.trace.export.guards import Guess
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.weights import identity, plain
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.background import ForkedCall
from trtbuild.stages.trace.proof.dataflow import Flows, Leaves
from trtbuild.stages.trace.proof.differences import NAN_ELSEWHERE, difference
from trtbuild.stages.trace.proof.divergence import diverging_line
from trtbuild.stages.trace.proof.returned import OtherResult, returned_tensors
from trtbuild.stages.trace.user_code.advice import value_advice
from trtbuild.stages.trace.user_code.frames import Frames, described, first_lines

#: Numbers are compared at all points if the estimate from the first point is less than this.
WORTHWHILE_S = 1.0


@dataclass(frozen=True)
class Point:
    """Sizes of the symbols. If a guard that fails there is the reason to try them, `guess` is that guard."""

    sizes: tuple[int, ...]
    guess: Guess | None = None


class Proof:
    """Compares program and model at every point: at the first point at once, at the other points in the background.

    `seen` returns a value that changes with each new dependency of user code.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        arranged: Arranged,
        guesses: Sequence[Guess],
        job: TraceJob,
        frames: Frames,
        seen: Callable[[], object] = lambda: None,
    ) -> None:
        self._module, self._arranged, self._job, self._frames, self._seen = module, arranged, job, frames, seen
        points = {sizes: Point(sizes) for sizes in dict.fromkeys((_example(job), *job.points))}
        for guess in guesses:
            point = points.setdefault(guess.sizes, Point(guess.sizes, guess))
            if point.guess is None:
                points[guess.sizes] = Point(guess.sizes, guess)
        # small points first: they show most errors in milliseconds
        self._points = sorted(points.values(), key=lambda p: (_elements(p, job), p.sizes))
        self._weights = [plain(weight.value) for weight in arranged.weights]
        self._comparison: ForkedCall | None = None

    def __enter__(self) -> Proof:
        """Compare numbers at the smallest point, and begin with the other points. Raises SourceError."""
        first, *others = self._points
        duration_s = self._compare(first)
        total = sum(_elements(point, self._job) for point in others)
        if duration_s * total / max(_elements(first, self._job), 1) > WORTHWHILE_S:
            self._comparison = ForkedCall(self._equal_flows).__enter__()
        return self

    def finish(self) -> None:
        """Finish the comparison of all points. Raises SourceError."""
        others = self._points[1:]
        answer = self._comparison.answer() if self._comparison is not None else None
        for point, is_equal in zip(others, answer or [False] * len(others), strict=True):
            if not is_equal:
                self._compare(point)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._comparison is not None:
            self._comparison.__exit__(kind, error, tb)

    def _compare(self, point: Point) -> float:
        """Compare numbers at one point. Returns the seconds without garbage collection, which takes as long at every
        point."""
        started = time.monotonic()
        _prove_at(point, self._module, self._arranged, self._weights, self._job, self._frames)
        duration_s = time.monotonic() - started
        gc.collect()
        return duration_s

    def _equal_flows(self) -> list[bool]:
        """For each point after the first, whether the flows of model and program are equal there."""
        module_slots = {id(weight): str(slot) for slot, weight in enumerate(self._arranged.weights)}
        slots = {identity(value): str(slot) for slot, value in enumerate(self._weights)}

        def leaf(tensor: torch.Tensor) -> str | None:
            weight = self._arranged.module_weights.of(tensor)
            return slots.get(identity(tensor)) if weight is None else module_slots.get(id(weight))

        before = self._seen()
        found = []
        for point in self._points[1:]:
            equal = False
            with contextlib.suppress(Exception):
                equal = self._has_equal_flow(point, leaf)
            # a dependency that only the copy has seen would be lost
            found.append(equal and self._seen() == before)
        return found

    def _has_equal_flow(self, point: Point, leaf: Leaves) -> bool:
        flows = Flows()
        values = tensors(self._job.inputs, self._job.shapes.input_shapes(point.sizes))

        def eager(inputs: list[torch.Tensor]) -> Any:
            args, kwargs = call_arguments(self._job.inputs, inputs)
            return returned_tensors(self._module(*args, **kwargs), self._arranged.leaves)

        expected = flows.results(eager, values, leaf)
        actual = flows.results(lambda inputs: _run(self._arranged, self._weights, inputs), values, leaf)
        return [actual[index] for index in self._arranged.outputs] == expected


def _prove_at(
    point: Point,
    module: torch.nn.Module,
    arranged: Arranged,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> None:
    values = tensors(job.inputs, job.shapes.input_shapes(point.sizes))
    problem = _problem_with(values, point, module, arranged, weights, job, frames)
    # a mask that hides every key of a row gives NaN, or not, depending on the implementation of attention (rule 4)
    for fill in (False, True) if any(value.dtype is torch.bool for value in values) else ():
        if problem is None or not problem.endswith(NAN_ELSEWHERE):
            break
        filled = [torch.full_like(value, fill) if value.dtype is torch.bool else value for value in values]
        problem = _problem_with(filled, point, module, arranged, weights, job, frames)
    if problem is not None:
        raise _frozen(point, problem, module, job, frames)


def _problem_with(
    values: list[torch.Tensor],
    point: Point,
    module: torch.nn.Module,
    arranged: Arranged,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> str | None:
    """The first difference between program and model on `values`; None if they agree. Raises SourceError if the model
    fails."""
    model_output = _eager(point, module, [value.clone() for value in values], job, frames)
    try:
        outputs = _run(arranged, weights, values)
    except Exception as error:
        return f"it fails there: {first_lines(described(error), 1)}"
    try:
        expected_tensors = returned_tensors(model_output, arranged.leaves)
    except OtherResult as error:
        return str(error)
    leaves = [leaf for leaf in arranged.leaves if not isinstance(leaf, ConstantLeaf)]
    for number, (index, expected, leaf) in enumerate(zip(arranged.outputs, expected_tensors, leaves, strict=True)):
        refuse_elsewhere(number, expected, job)
        output = outputs[index]
        if isinstance(leaf, NumberLeaf) and leaf.type == "float" and leaf.read_from is not None:
            output, expected = output.to(leaf.read_from), expected.to(leaf.read_from)
        gap = difference(output, expected)
        if gap is not None:
            return f"output {number} has {gap if isinstance(gap, str) else f'a relative difference of {gap:.2g}'}"
    return None


def _eager(point: Point, module: torch.nn.Module, values: list[torch.Tensor], job: TraceJob, frames: Frames) -> Any:
    state = [("parameter", name, tensor) for name, tensor in module.named_parameters()]
    state += [("buffer", name, tensor) for name, tensor in module.named_buffers()]
    state += [("input", entry.name, value) for entry, value in zip(job.inputs, values, strict=True)]
    versions = [tensor._version for _, _, tensor in state]
    args, kwargs = call_arguments(job.inputs, values)
    try:
        output = module(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise_eager(module, job, frames)  # an error at the example, too, has nothing to do with this size
        frames.raise_from(
            error,
            f"the model itself fails at {_sizes(point, job)}, which the profiles allow",
            code="eager",
            hint=value_advice(error, job.inputs)
            or (_hint(point, job) if point.guess else "change the profiles' shapes, or the model"),
            fallback=_place(point, job),
        )
    for (kind, name, tensor), version in zip(state, versions, strict=True):
        if tensor._version != version:
            raise mutated(kind, name, job)
    return output


def _run(arranged: Arranged, weights: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    program = arranged.program
    values_by_node = dict(zip(program.weight_nodes, weights, strict=True)) | dict(
        zip(program.input_nodes, values, strict=True)
    )
    constants = program.constants
    args = [values_by_node[node] if node in values_by_node else constants[node.name] for node in program.placeholders]
    return list(program.exported.graph_module(*args))


def _frozen(point: Point, problem: str, module: torch.nn.Module, job: TraceJob, frames: Frames) -> SourceError:
    assumed = f" (export assumed {point.guess.text})" if point.guess else ""
    place, hint = _place(point, job), _hint(point, job)
    text = (
        f"the traced program is not the model at {_sizes(point, job)}: {problem}. The model takes another branch there "
    )
    text += f"than at the example{assumed}, and export kept only one"
    found = diverging_line(
        lambda: _call(module, point.sizes, job), lambda: _call(module, _example(job), job), frames.is_shown
    )
    if found:
        (file, line), is_here = found
        size_texts = [_sizes(point, job), _sizes(Point(_example(job)), job)]
        text += f": this line runs at {size_texts[not is_here]}, and not at {size_texts[is_here]}"
        if place:
            hint += f"; the size is declared at {place['file']}:{place['line']}"
        place = {"file": frames.shown(file), "line": line}
    return SourceError(text, code="frozen-branch", hint=hint, **place)


def _example(job: TraceJob) -> tuple[int, ...]:
    return tuple(symbol.example for symbol in job.shapes.symbols)


def _call(module: torch.nn.Module, sizes: tuple[int, ...], job: TraceJob) -> Any:
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.input_shapes(sizes)))
    return module(*args, **kwargs)


def _hint(point: Point, job: TraceJob) -> str:
    if point.guess and point.guess.hint:
        return point.guess.hint
    return (
        "leave that size out of the profiles, write the branch with tensors (torch.where, torch.cond), or declare two "
        "models with their own profiles"
    )


def _sizes(point: Point, job: TraceJob) -> str:
    plan = job.shapes
    if not plan.symbols:
        return "the declared shapes"
    texts = []
    for number, size in enumerate(point.sizes):
        places = axes_of_symbol(plan, job.inputs, number)
        texts.append(f"{' = '.join(places)} = {size}")
    return ", ".join(texts)


def _place(point: Point, job: TraceJob) -> dict[str, Any]:
    """The place of the dim whose size differs from the example's."""
    for number, symbol in enumerate(job.shapes.symbols):
        if point.sizes[number] != symbol.example:
            entry = axes_of_symbol(job.shapes, job.inputs, number)[0].rpartition(".")[0]
            return job.place(f"dims.{symbol.name}", f"inputs.{entry}")
    return job.place("source")


def _elements(point: Point, job: TraceJob) -> int:
    total = 0
    for shape in job.shapes.input_shapes(point.sizes):
        count = 1
        for size in shape:
            count *= size
        total += count
    return total
