"""Outputs whose sizes do not follow from the symbols alone.

Some operators do another thing where a size is 1: ``squeeze`` takes an axis out there, and leaves it in everywhere else.
torch.export takes every dynamic size to be 2 or more, so the traced program says what holds there, and eager and program
agree at size 1, where both give another rank than the program says. No engine, and no package, can have such an output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Difference, difference, points_of
from trtbuild.stages.program.text import target_name
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import Frames


def changing_rank(program: Program, raw: ExportedProgram, job: TraceJob, frames: Frames) -> SourceError | None:
    """The error of a model of which an output has other sizes than the program says, at an end of a range or between. `raw`
    still has its stack traces."""
    units = [symbol.multiple_of for symbol in job.shapes.symbols]
    points = [[size // unit for size, unit in zip(point, units, strict=True)] for point in job.points]
    found = difference(program, points_of(program, points), outputs_only=True)
    if found is None:
        return None
    shown = ", ".join(
        f"{symbol.name} = {number * symbol.multiple_of}"
        for symbol, number in zip(job.shapes.symbols, found.point.values(), strict=True)
    )
    return SourceError(
        f"an output of the model has other axes at some sizes than at others: with {shown}, {found}",
        code="changing-rank",
        hint=_hint(found),
        **_place(found, raw, job, frames),
    )


def _hint(found: Difference) -> str:
    hint = "make the axis static (the same min, opt and max in every profile), or start its range at 2"
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
