"""Find points of the declared ranges where the traced program declares wrong sizes.

A program declares each size as a formula over its symbols. torch.export assumes that every dynamic size is 2 or more. But
at size 1, some operators return another shape: ``squeeze`` removes an axis only if its size is 1. Model and program then
return equal tensors, whose rank is not the declared one. An engine or a package cannot have such an output.

torch.export treats an axis with the range 1..2 as the number 2. So it does not report that two such axes must be equal if
a model adds them. If one size is 1 and the other is 2, PyTorch broadcasts, and the program declares a wrong size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.core.model.shapes import axes_of_symbol
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Difference, first_difference, points_of
from trtbuild.stages.program.text import target_name
from trtbuild.stages.trace.export.constraints import describe_symbol
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def changing_size_error(program: Program, raw: ExportedProgram, job: TraceJob, frames: Frames) -> SourceError | None:
    """The error for a program that declares other sizes than its operators compute; None if all sizes agree.

    Sizes are compared at the points of `job`, at the ends of the ranges and between them. `raw` is the program of
    torch.export, which still has its stack traces.
    """
    multiples = [symbol.multiple_of for symbol in job.shapes.symbols]
    points = [[size // multiple for size, multiple in zip(point, multiples, strict=True)] for point in job.points]
    difference = first_difference(program, points_of(program, points), ranks_may_differ=True)
    unequal = _unequal_axes(program, job)
    if unequal is not None:
        unequal_difference, first, second = unequal
        plan, inputs = job.shapes, job.inputs
        all_places = [*axes_of_symbol(plan, inputs, first), *axes_of_symbol(plan, inputs, second)]
        return SourceError(
            f"{describe_symbol(plan, inputs, second)} must always be as long as {describe_symbol(plan, inputs, first)}, "
            "but they are declared as two dims",
            code="constraint",
            hint=f"name one dim for all places: dims: {{{plan.symbols[first].name}: {{at: [{', '.join(all_places)}]}}}}",
            **_place(unequal_difference, raw, job, frames),
        )
    if difference is None:
        return None
    sizes = [value * multiple for value, multiple in zip(difference.point.values(), multiples, strict=True)]
    shown = ", ".join(f"{symbol.name} = {size}" for symbol, size in zip(job.shapes.symbols, sizes, strict=True))
    summary = "the traced program has the model's sizes at a part of the declared range only"
    if not difference.only_sizes:
        summary = "the number of axes of an output depends on a size"
    return SourceError(
        f"{summary}: with {shown}, {difference}",
        code="changing-size" if difference.only_sizes else "changing-rank",
        hint=_hint(difference),
        **_place(difference, raw, job, frames),
    )


def _unequal_axes(program: Program, job: TraceJob) -> tuple[Difference, int, int] | None:
    """Find two symbols that must be equal, and whose ranges end at 2. Returns the first wrong size where the two symbols
    differ, and the numbers of the symbols."""
    symbols = job.shapes.symbols
    candidates = [number for number, symbol in enumerate(symbols) if symbol.max == 2 * symbol.multiple_of]

    def difference_at_1(*symbols_at_1: int) -> Difference | None:
        """The first wrong size where these symbols are 1, and all others have their largest value."""
        point = [
            1 if number in symbols_at_1 else symbol.max // symbol.multiple_of for number, symbol in enumerate(symbols)
        ]
        return first_difference(program, points_of(program, [point])[:1])

    if len(candidates) < 2 or difference_at_1():
        return None
    for one in candidates:
        difference, others = difference_at_1(one), [other for other in candidates if other != one]
        if difference:
            equal_symbols = [other for other in others if not difference_at_1(one, other)]
            # if sizes are right only when all candidates are 1, three or more symbols must be equal: name two of them
            if equal_symbols or not difference_at_1(*candidates):
                first, second = sorted((one, (equal_symbols or others)[0]))
                return difference, first, second
    return None


def _hint(difference: Difference) -> str:
    advice = "make the axis static (the same min, opt and max in every profile)"
    if difference.only_sizes:
        return f"leave that size out of the profiles, or {advice}"
    hint = f"{advice}, or start its range at 2"
    if "squeeze" in target_name(difference.node.target):
        return (
            f"squeeze takes an axis out only where its size is 1: {hint}; or use reshape, with the axes of the result"
        )
    return hint


def _place(difference: Difference, raw: ExportedProgram, job: TraceJob, frames: Frames) -> dict[str, Any]:
    """The line of user code that computes the wrong value. Its node in `raw` has the same operator, and often the same
    name."""
    same_operator = [
        node for node in raw.graph.nodes if node.op == "call_function" and node.target is difference.node.target
    ]
    same_name = [node for node in same_operator if node.name == difference.node.name]
    (node, *_) = same_name or same_operator or [difference.node]
    place = frames.place_in_stack_trace(_stack_trace(node))
    return {"file": place[0], "line": place[1]} if place else job.place("source")


def _stack_trace(node: torch.fx.Node) -> str | None:
    stack = node.meta.get("stack_trace")
    return stack if isinstance(stack, str) else None
