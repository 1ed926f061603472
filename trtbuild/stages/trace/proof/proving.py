"""Prove a trace: the functional program equals the model, at the ends of every profile and at sizes that break a guard.

Rules
1. The points are the example, the min and max of every profile, and a size that breaks each guard that export does not
   report (`guards`). Each is compared once.
2. Both get the same seeded inputs. Dtypes, shapes and the places of NaN are equal; the largest difference is at most
   `TOLERANCE` of the largest number; integers, bools and constants are equal. A float that the model reads from a tensor
   (``item``) is compared in the tensor's type. Numbers are always compared at the smallest point.
   If the other points would take long, it is enough that model and program call the same operators on the same values
   there (`dataflow`): this is a stronger proof, and takes milliseconds. If it fails, numbers are compared.
3. A call may not write to its inputs or to the module's weights and buffers (a branch may do so at one size only).
4. The program runs on the stored form of the weights, like all later steps.
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

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.export.arranging import Arranged
from trtbuild.stages.trace.export.checks import mutated, refuse_elsewhere
from trtbuild.stages.trace.export.constraints import places_of
from trtbuild.stages.trace.export.exporting import raise_eager
from trtbuild.stages.trace.export.guards import Guess
from trtbuild.stages.trace.export.leaves import ConstantLeaf, NumberLeaf
from trtbuild.stages.trace.export.weights import identity, plain
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.proof.background import ForkedCall
from trtbuild.stages.trace.proof.dataflow import Flows, Leaves
from trtbuild.stages.trace.proof.divergence import diverging_line
from trtbuild.stages.trace.proof.returned import OtherResult, returned_tensors
from trtbuild.stages.trace.user_code.advice import value_advice
from trtbuild.stages.trace.user_code.frames import Frames, described, first_lines

TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


#: Numbers are compared at all points if the estimate from the first point is less than this.
WORTHWHILE_S = 1.0


@dataclass(frozen=True)
class Point:
    """Sizes of the symbols. `guess` is the guard that fails there, if that is the reason to try them."""

    sizes: tuple[int, ...]
    guess: Guess | None = None


class Proof:
    """Compares program and model at every point, in two halves: the second half runs in the background of other work.

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
            points.setdefault(guess.sizes, Point(guess.sizes, guess))
        # small points first: they show most errors in milliseconds
        self._points = sorted(points.values(), key=lambda p: (_elements(p, job), p.sizes))
        self._weights = [plain(weight.value) for weight in arranged.weights]
        self._comparison: ForkedCall | None = None

    def __enter__(self) -> Proof:
        """Compare numbers at the smallest point, and begin with the others. Raises SourceError."""
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
        """Seconds that it took. Collecting garbage is not counted: it takes as long at every point."""
        started = time.monotonic()
        _prove_at(point, self._module, self._arranged, self._weights, self._job, self._frames)
        duration_s = time.monotonic() - started
        gc.collect()
        return duration_s

    def _equal_flows(self) -> list[bool]:
        """For each point after the first, whether the flows of model and program are equal there."""
        names = {id(weight): str(slot) for slot, weight in enumerate(self._arranged.weights)}
        own = {identity(value): str(slot) for slot, value in enumerate(self._weights)}

        def leaf(tensor: torch.Tensor) -> str | None:
            weight = self._arranged.module_weights.of(tensor)
            return own.get(identity(tensor)) if weight is None else names.get(id(weight))

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
        values = tensors(self._job.inputs, self._job.shapes.sizes(point.sizes))

        def eager(inputs: list[torch.Tensor]) -> Any:
            args, kwargs = call_arguments(self._job.inputs, inputs)
            return returned_tensors(self._module(*args, **kwargs), self._arranged.leaves)

        want = flows.results(eager, values, leaf)
        got = flows.results(lambda inputs: _run(self._arranged, self._weights, inputs), values, leaf)
        return [got[index] for index in self._arranged.outputs] == want


def difference(got: torch.Tensor, want: torch.Tensor) -> float | str | None:
    """The largest difference relative to the largest number; a text if the two cannot be compared; None if equal."""
    if got.dtype != want.dtype:
        return f"dtype {got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if not (want.is_floating_point() or want.is_complex()):
        return None if torch.equal(got, want) else "other values"
    if torch.equal(torch.isnan(got), torch.isnan(want)) is False:
        return "NaN at other places"
    same = (got == want) | torch.isnan(want)
    if bool(same.all()):
        return None
    finite = torch.isfinite(want) & torch.isfinite(got)
    if not bool((finite | same).all()):
        return "infinities at other places"
    wide = torch.complex128 if want.is_complex() else torch.float64
    a, b = got[finite].to(wide), want[finite].to(wide)
    largest = float(b.abs().max())
    gap = float((a - b).abs().max())
    relative = gap / largest if largest else float("inf")
    return None if relative <= TOLERANCE.get(want.dtype, 0.0) else relative


def _prove_at(
    point: Point,
    module: torch.nn.Module,
    arranged: Arranged,
    weights: list[torch.Tensor],
    job: TraceJob,
    frames: Frames,
) -> None:
    values = tensors(job.inputs, job.shapes.sizes(point.sizes))
    want = _eager(point, module, [value.clone() for value in values], job, frames)
    try:
        got = _run(arranged, weights, values)
    except Exception as error:
        raise _frozen(point, f"it fails there: {first_lines(described(error), 1)}", module, job, frames) from error
    try:
        flat = returned_tensors(want, arranged.leaves)
    except OtherResult as error:
        raise _frozen(point, str(error), module, job, frames) from error
    kinds = [leaf for leaf in arranged.leaves if not isinstance(leaf, ConstantLeaf)]
    for number, (index, expected, leaf) in enumerate(zip(arranged.outputs, flat, kinds, strict=True)):
        refuse_elsewhere(number, expected, job)
        ours = got[index]
        if isinstance(leaf, NumberLeaf) and leaf.type == "float" and leaf.read_from is not None:
            ours, expected = ours.to(leaf.read_from), expected.to(leaf.read_from)
        gap = difference(ours, expected)
        if gap is not None:
            told = gap if isinstance(gap, str) else f"a relative difference of {gap:.2g}"
            raise _frozen(point, f"output {number} has {told}", module, job, frames)


def _eager(point: Point, module: torch.nn.Module, values: list[torch.Tensor], job: TraceJob, frames: Frames) -> Any:
    state = [("parameter", name, tensor) for name, tensor in module.named_parameters()]
    state += [("buffer", name, tensor) for name, tensor in module.named_buffers()]
    state += [("input", entry.name, value) for entry, value in zip(job.inputs, values, strict=True)]
    versions = [tensor._version for _, _, tensor in state]
    args, kwargs = call_arguments(job.inputs, values)
    try:
        want = module(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise_eager(module, job, frames)  # an error at the example, too, has nothing to do with this size
        frames.raise_from(
            error,
            f"the model itself fails at {_sizes(point, job)}, which the profiles allow",
            code="eager",
            hint=_hint(point, job)
            if point.guess
            else value_advice(error, job.inputs) or "change the profiles' shapes, or the model",
            fallback=_place(point, job),
        )
    for (kind, name, tensor), version in zip(state, versions, strict=True):
        if tensor._version != version:
            raise mutated(kind, name, job)
    return want


def _run(arranged: Arranged, weights: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    program = arranged.program
    held = dict(zip(program.weight_nodes, weights, strict=True)) | dict(zip(program.input_nodes, values, strict=True))
    constants = program.constants
    args = [held[node] if node in held else constants[node.name] for node in program.placeholders]
    return list(program.exported.graph_module(*args))


def _frozen(point: Point, what: str, module: torch.nn.Module, job: TraceJob, frames: Frames) -> SourceError:
    assumed = f" (export assumed {point.guess.text})" if point.guess else ""
    place, hint = _place(point, job), _hint(point, job)
    text = f"the traced program is not the model at {_sizes(point, job)}: {what}. The model takes another branch there "
    text += f"than at the example{assumed}, and export kept only one"
    found = diverging_line(
        lambda: _call(module, point.sizes, job), lambda: _call(module, _example(job), job), frames.is_shown
    )
    if found:
        (file, line), is_here = found
        at = [_sizes(point, job), _sizes(Point(_example(job)), job)]
        text += f": this line runs at {at[not is_here]}, and not at {at[is_here]}"
        if place:
            hint += f" (the manifest's side of it: {place['file']}:{place['line']})"
        place = {"file": frames.shown(file), "line": line}
    return SourceError(text, code="frozen-branch", hint=hint, **place)


def _example(job: TraceJob) -> tuple[int, ...]:
    return tuple(symbol.example for symbol in job.shapes.symbols)


def _call(module: torch.nn.Module, sizes: tuple[int, ...], job: TraceJob) -> Any:
    args, kwargs = call_arguments(job.inputs, tensors(job.inputs, job.shapes.sizes(sizes)))
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
    shown = []
    for number, size in enumerate(point.sizes):
        places = places_of(plan, job.inputs, number)
        shown.append(f"{' = '.join(places)} = {size}")
    return ", ".join(shown)


def _place(point: Point, job: TraceJob) -> dict[str, Any]:
    """The place of the dim whose size differs from the example's."""
    for number, symbol in enumerate(job.shapes.symbols):
        if point.sizes[number] != symbol.example:
            entry = places_of(job.shapes, job.inputs, number)[0].rpartition(".")[0]
            return job.place(f"dims.{symbol.name}", f"inputs.{entry}")
    return job.place("source")


def _elements(point: Point, job: TraceJob) -> int:
    total = 0
    for shape in job.shapes.sizes(point.sizes):
        count = 1
        for size in shape:
            count *= size
        total += count
    return total
