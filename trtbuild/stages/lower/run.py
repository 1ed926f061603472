"""The lower step: one traced program in, one lowered program out.

Rules
1. The lowered program has the functional form of `trtbuild.stages.program.functional`: the same weights, constants and
   inputs in the same order (unused ones too), the same outputs with the same dtypes, no mutation.
2. What happens, and in what order, is the table in `passes.py`; nothing else changes a graph.
3. torch learns nothing about the symbols on the way (`fixed_symbols`).
4. What leaves the step has the sizes of what came in (`trtbuild.stages.program.guard`).
5. The program that is handed in is not changed. The same program gives the same canonical text in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.core.model.spec import Precision
from trtbuild.stages.lower.passes import PASSES, Pass
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.fixed_symbols import fixed_symbols
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.guard import refuse_changes, signature


def lower(
    program: Program,
    precision: Precision,
    decompositions: Mapping[Any, Callable[..., Any]],
    points: Sequence[Sequence[int]] = (),
) -> Program:
    """`program` as partitions are cut from it, computing in `precision`.

    `decompositions` maps each operator that has no ONNX translation to its decomposition, as
    ``ExportedProgram.run_decompositions`` takes it. Raises SourceError (code ``mutated-input``) for a program that
    writes to one of its inputs, which only functionalization brings to light, and InconsistentShapes (rule 4). `points`
    are numbers of the symbols at which sizes are compared, beside those that follow from the ranges.
    """
    traced = signature(program)
    lowered = run_passes(program, Request(precision=precision, decompositions=decompositions), PASSES)
    refuse_changes(lowered, traced, "lower", points)
    return lowered


def run_passes(program: Program, request: Request, passes: Sequence[Pass]) -> Program:
    """`program` after `passes`, in order, verified and with clean metadata."""
    with fixed_symbols():
        for step in passes:
            program = step.function(program, request)
    # once more through the one place that knows the functional form
    signature = program.exported.graph_signature
    exported = assemble(
        program.exported.graph_module,
        list(signature.input_specs),
        list(signature.output_specs),
        program.exported.range_constraints,
        program.exported.constants,
    )
    return Program(exported, program.weights)
