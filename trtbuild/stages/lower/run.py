"""The lower step: makes a lowered program from a traced program.

Rules
1. The lowered program has the functional form of `trtbuild.stages.program.functional`: the same weights, constants and
   inputs in the same order (unused ones too), the same outputs with the same dtypes, no mutation.
2. The table in `passes.py` lists all changes of a graph, in order.
3. torch adds no guards on the symbols during the step (`fixed_symbols`).
4. The lowered program has the same sizes as the traced program (`trtbuild.stages.program.consistency`).
5. The traced program is not changed. The same program gives the same canonical text in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtbuild.core.model.precisions import Precision, Precisions
from trtbuild.stages.lower.passes import PASSES, Pass
from trtbuild.stages.lower.request import Request
from trtbuild.stages.program.consistency import refuse_changes, signature
from trtbuild.stages.program.fixed_symbols import suppress_new_guards
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.text import module_paths


def lower(
    program: Program,
    precision: Precision | Precisions,
    decompositions: Mapping[Any, Callable[..., Any]],
    points: Sequence[Sequence[int]] = (),
    *,
    truncates_double: bool = False,
) -> Program:
    """Return the lowered form of `program`. This form computes in `precision`, or each module in its own precision. With
    `truncates_double`, this form computes float64 operations in float32.

    `decompositions` maps operators to their decompositions, in the form of ``ExportedProgram.run_decompositions``.
    `points` are additional values of the symbols for the comparison of rule 4.

    Raises SourceError for a program that writes to one of its inputs (code ``mutated-input``), and for ``as_strided`` of a
    tensor whose order in memory is not known (``strides``). Also raises SourceError for the patterns that `check_modules`
    refuses (``precision-pattern``). Raises ConversionRefused if PyTorch cannot decompose the program, and
    InconsistentShapes (rule 4).
    """
    precisions = precision if isinstance(precision, Precisions) else Precisions(precision)
    check_modules(program, precisions)
    traced = signature(program)
    lowered = run_passes(program, Request(precisions, decompositions, truncates_double), PASSES)
    refuse_changes(lowered, traced, "lower", points)
    return lowered


def check_modules(program: Program, precisions: Precisions) -> None:
    """Raise SourceError if a pattern covers no module of `program`, or if two patterns with different precisions
    contradict each other about one module (`trtbuild.core.model.precisions`, rule 3)."""
    if precisions.modules:
        paths = list(dict.fromkeys(path for path, _, _ in module_paths(program)))
        precisions.check(paths)
        for path in paths:
            precisions.of(path)


def run_passes(program: Program, request: Request, passes: Sequence[Pass]) -> Program:
    """Apply `passes` to `program`, in order. The result is verified, and has only the metadata that `assemble` keeps."""
    with suppress_new_guards():
        for step in passes:
            program = step.function(program, request)
    # `assemble` is the only function that builds the functional form
    graph_signature = program.exported.graph_signature
    exported = assemble(
        program.exported.graph_module,
        list(graph_signature.input_specs),
        list(graph_signature.output_specs),
        program.exported.range_constraints,
        program.exported.constants,
    )
    return Program(exported, program.weights)
