"""Find sizes that do not follow from the symbols alone.

Some operators behave differently where a size is 1: ``squeeze`` removes an axis of size 1, and keeps every other axis.
torch.export assumes that every dynamic size is 2 or more, so the traced program declares the shapes for these sizes. At
size 1 the model and the program return equal tensors, but their rank is not the declared one. An engine or a package
cannot have such an output.

torch.export treats an axis of 1..2 as the number 2. So if a model adds two such axes, it does not report that they must
be equal. If one axis is 1 and the other is 2, PyTorch broadcasts, and the sizes in the program are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.core.model.shapes import axes_of_symbol
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Difference, difference, points_of
from trtbuild.stages.program.text import target_name
from trtbuild.stages.trace.export.constraints import describe
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def changing_size(program: Program, raw: ExportedProgram, job: TraceJob, frames: Frames) -> SourceError | None:
    """Compare the model's sizes with those of `program` at the ends of the ranges and between them. Returns the error if
    they differ, None otherwise. `raw` still has its stack traces."""
    units = [symbol.multiple_of for symbol in job.shapes.symbols]
    points = [[size // unit for size, unit in zip(point, units, strict=True)] for point in job.points]
    wrong = difference(program, points_of(program, points), ranks_may_differ=True)
    unequal = _unequal_axes(program, job)
    if unequal is not None:
        wrong, first, second = unequal
        plan, inputs = job.shapes, job.inputs
        all_places = [*axes_of_symbol(plan, inputs, first), *axes_of_symbol(plan, inputs, second)]
        return SourceError(
            f"{describe(plan, inputs, second)} must always be as long as {describe(plan, inputs, first)}, "
            "but they are declared as two dims",
            code="constraint",
            hint=f"name one dim for all places: dims: {{{plan.symbols[first].name}: {{at: [{', '.join(all_places)}]}}}}",
            **_place(wrong, raw, job, frames),
        )
    if wrong is None:
        return None
    sizes = [number * unit for number, unit in zip(wrong.point.values(), units, strict=True)]
    shown = ", ".join(f"{symbol.name} = {size}" for symbol, size in zip(job.shapes.symbols, sizes, strict=True))
    summary = "the traced program has the model's sizes at a part of the declared range only"
    if not wrong.only_sizes:
        summary = "the number of axes of an output depends on a size"
    return SourceError(
        f"{summary}: with {shown}, {wrong}",
        code="changing-size" if wrong.only_sizes else "changing-rank",
        hint=_hint(wrong, sizes),
        **_place(wrong, raw, job, frames),
    )


def _unequal_axes(program: Program, job: TraceJob) -> tuple[Difference, int, int] | None:
    """Find two symbols of 1..2 that must be equal. Returns the first value whose sizes are wrong where the symbols
    differ, and then the two symbols."""
    symbols = job.shapes.symbols
    two = [number for number, symbol in enumerate(symbols) if symbol.max == 2 * symbol.multiple_of]

    def wrong_with(*low: int) -> Difference | None:
        units = [1 if n in low else symbol.max // symbol.multiple_of for n, symbol in enumerate(symbols)]
        return difference(program, points_of(program, [units])[:1])

    if len(two) < 2 or wrong_with():
        return None
    for one in two:
        found, others = wrong_with(one), [other for other in two if other != one]
        if found:
            healing = [other for other in others if not wrong_with(one, other)]
            if healing or not wrong_with(*two):
                first, second = sorted((one, (healing or others)[0]))
                return found, first, second
    return None


def _hint(found: Difference, sizes: Sequence[int]) -> str:
    static = "make the axis static (the same min, opt and max in every profile)"
    if found.only_sizes:
        return f"leave that size out of the profiles, or {static}"
    hint = f"{static}, or start its range at 2"
    if "squeeze" in target_name(found.node.target):
        return f"squeeze takes an axis out only where its size is 1: {hint}; or name the axes to keep with reshape"
    return hint


def _place(found: Difference, raw: ExportedProgram, job: TraceJob, frames: Frames) -> dict[str, Any]:
    alike = [node for node in raw.graph.nodes if node.op == "call_function" and node.target is found.node.target]
    named = [node for node in alike if node.name == found.node.name]
    place = frames.in_stack_trace(_stack((named or alike or [found.node])[0]))
    return {"file": place[0], "line": place[1]} if place else job.place("source")


def _stack(node: torch.fx.Node) -> str | None:
    stack = node.meta.get("stack_trace")
    return stack if isinstance(stack, str) else None
