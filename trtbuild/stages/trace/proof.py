"""The trace proves itself: the functional program equals the model, at the ends of every profile and where export guessed.

Rules
1. The points are the example, the min and max of every profile, and a size that breaks each guard that export kept
   silently (`guards`). Each is compared once.
2. Both get the same seeded inputs. Dtypes, shapes and the places of NaN are equal; the largest difference is at most
   `TOLERANCE` of the largest number; integers and bools are equal.
3. A call may not write to its inputs or to the module's weights and buffers (a branch may do so at one size only).
4. The program runs on contiguous weights, as everything after it does.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.errors import SourceError
from trtbuild.stages.trace.arranging import Arranged
from trtbuild.stages.trace.checks import mutated
from trtbuild.stages.trace.constraints import places_of
from trtbuild.stages.trace.examples import call_arguments, tensors
from trtbuild.stages.trace.frames import Frames
from trtbuild.stages.trace.guards import Guess
from trtbuild.stages.trace.job import TraceJob

TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


@dataclass(frozen=True)
class Point:
    """Sizes of the symbols. `guess` is the guard that fails there, where that is why it is tried."""

    sizes: tuple[int, ...]
    guess: Guess | None = None


def prove(module: torch.nn.Module, arranged: Arranged, guesses: Sequence[Guess], job: TraceJob, frames: Frames) -> None:
    """Compare program and model at every point. Raises SourceError."""
    example = tuple(symbol.example for symbol in job.shapes.symbols)
    points = {sizes: Point(sizes) for sizes in dict.fromkeys((example, *job.points))}
    for guess in guesses:
        points.setdefault(guess.sizes, Point(guess.sizes, guess))
    weights = [weight.value.contiguous() for weight in arranged.weights]
    # small points first: what is wrong there is found in milliseconds
    for point in sorted(points.values(), key=lambda p: (_elements(p, job), p.sizes)):
        _prove_at(point, module, arranged, weights, job, frames)
        gc.collect()


def difference(got: torch.Tensor, want: torch.Tensor) -> float | str | None:
    """The largest difference relative to the largest number; a text where the two cannot be compared; None if equal."""
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
        raise SourceError(
            f"the traced program fails at {_sizes(point, job)}, where the model itself does not: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            code="frozen-branch",
            hint=_hint(point, job),
            **_place(point, job),
        ) from error
    flat = [leaf for leaf in pytree.tree_leaves(want) if isinstance(leaf, torch.Tensor)]
    if len(flat) != len(arranged.outputs):
        raise _frozen(point, f"the model returns {len(flat)} tensors there, not {len(arranged.outputs)}", job)
    for number, (index, expected) in enumerate(zip(arranged.outputs, flat, strict=True)):
        gap = difference(got[index], expected)
        if gap is not None:
            told = gap if isinstance(gap, str) else f"a relative difference of {gap:.2g}"
            raise _frozen(point, f"output {number} has {told}", job)


def _eager(point: Point, module: torch.nn.Module, values: list[torch.Tensor], job: TraceJob, frames: Frames) -> Any:
    state = [("parameter", name, tensor) for name, tensor in module.named_parameters()]
    state += [("buffer", name, tensor) for name, tensor in module.named_buffers()]
    state += [("input", entry.name, value) for entry, value in zip(job.inputs, values, strict=True)]
    versions = [tensor._version for _, _, tensor in state]
    args, kwargs = call_arguments(job.inputs, values)
    try:
        want = module(*args, **kwargs)
    except Exception as error:
        frames.raise_from(
            error,
            f"the model itself fails at {_sizes(point, job)}, which the profiles allow",
            code="eager",
            hint=_hint(point, job) if point.guess else "change the profiles' shapes, or the model",
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


def _frozen(point: Point, what: str, job: TraceJob) -> SourceError:
    return SourceError(
        f"the traced program is not the model at {_sizes(point, job)}: {what}. The model takes another branch there "
        "than at the example, and export kept only one" + (f" (it assumed {point.guess.text})" if point.guess else ""),
        code="frozen-branch",
        hint=_hint(point, job),
        **_place(point, job),
    )


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
    """The place of the dim that differs from the example's."""
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
