"""Sizes that do not follow from the symbols alone.

Some operators do another thing where a size is 1: ``squeeze`` takes an axis out there, and leaves it in everywhere else.
torch.export takes every dynamic size to be 2 or more, so the traced program says what holds there, and eager and program
agree at size 1, where both give another rank than the program says. No engine, and no package, can have such an output.

To torch.export an axis of 1..2 is the number 2. So it does not say that two such axes must be equal if a model adds them.
If one is 1 and the other 2, PyTorch broadcasts, and the sizes in the program are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Difference, difference, points_of
from trtbuild.stages.program.text import target_name
from trtbuild.stages.trace.export.constraints import describe, places_of
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def changing_size(program: Program, raw: ExportedProgram, job: TraceJob, frames: Frames) -> SourceError | None:
    """Return the error of a model whose sizes are not those of `program` at an end of a range or between; None if all are
    right. `raw` still has its stack traces."""
    units = [symbol.multiple_of for symbol in job.shapes.symbols]
    points = [[size // unit for size, unit in zip(point, units, strict=True)] for point in job.points]
    found = difference(program, points_of(program, points), ranks_may_differ=True)
    unequal = _unequal_axes(program, job)
    if unequal is not None:
        found, one, other = unequal
        both = [*places_of(job.shapes, job.inputs, one), *places_of(job.shapes, job.inputs, other)]
        return SourceError(
            f"{describe(job.shapes, job.inputs, other)} must always be as long as {describe(job.shapes, job.inputs, one)}, "
            "but they are declared as two dims",
            code="constraint",
            hint=f"name one dim for all places: dims: {{{job.shapes.symbols[one].name}: {{at: [{', '.join(both)}]}}}}",
            **_place(found, raw, job, frames),
        )
    if found is None:
        return None
    sizes = [number * unit for number, unit in zip(found.point.values(), units, strict=True)]
    shown = ", ".join(f"{symbol.name} = {size}" for symbol, size in zip(job.shapes.symbols, sizes, strict=True))
    what = "the traced program has the model's sizes at a part of the declared range only"
    if not found.only_sizes:
        what = "an output of the model has other axes at some sizes than at others"
    return SourceError(
        f"{what}: with {shown}, {found}",
        code="changing-size" if found.only_sizes else "changing-rank",
        hint=_hint(found, sizes),
        **_place(found, raw, job, frames),
    )


def _unequal_axes(program: Program, job: TraceJob) -> tuple[Difference, int, int] | None:
    """Two symbols of 1..2 that must be equal, and before them the first value that has other sizes where they differ."""
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
