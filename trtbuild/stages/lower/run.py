"""The lower step: makes a lowered program from a traced program.

Rules
1. The lowered program has the functional form (`trtbuild.stages.program.functional`). It has the weights, constants, inputs
   and outputs of the traced program, with the same dtypes and in the same order. Unused inputs stay.
2. The table in `passes.py` lists all changes of the graph, in order.
3. torch adds no guards (conditions on sizes) to the program during the step (`fixed_symbols`).
4. The lowered program has the same sizes as the traced program (`trtbuild.stages.program.consistency`).
5. The traced program is not changed. Equal programs give the same canonical text (the program without names) in every
   process.
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
    """Return the lowered form of `program`, which computes in `precision`. `Precisions` have a precision for each module.

    `decompositions` maps operators to their decompositions, as for ``ExportedProgram.run_decompositions``. Rule 4 is also
    checked at `points`: each has a value for every symbol. With `truncates_double`, float64 operations are computed in
    float32.

    Raises SourceError with these codes: ``mutated-input`` for a program that writes to one of its inputs, ``strides`` for
    ``as_strided`` of a tensor whose order in memory is not known, ``precision-pattern`` for patterns that `check_modules`
    refuses. Raises ConversionRefused if PyTorch cannot decompose the program, and InconsistentShapes if the sizes differ
    (rule 4).
    """
    precisions = precision if isinstance(precision, Precisions) else Precisions(precision)
    check_modules(program, precisions)
    traced = signature(program)
    lowered = run_passes(program, Request(precisions, decompositions, truncates_double), PASSES)
    refuse_changes(lowered, traced, "lower", points)
    return lowered


def check_modules(program: Program, precisions: Precisions) -> None:
    """Raise SourceError if a pattern matches no module of `program`, or if two patterns contradict each other about a
    module (`trtbuild.core.model.precisions`, rule 3)."""
    if precisions.modules:
        paths = list(dict.fromkeys(path for path, _, _ in module_paths(program)))
        precisions.check(paths)
        for path in paths:
            precisions.of(path)


def run_passes(program: Program, request: Request, passes: Sequence[Pass]) -> Program:
    """Apply `passes` to `program`, in order."""
    with suppress_new_guards():
        for step in passes:
            program = step.function(program, request)
    # the new ExportedProgram verifies the changed graph
    graph_signature = program.exported.graph_signature
    exported = assemble(
        program.exported.graph_module,
        list(graph_signature.input_specs),
        list(graph_signature.output_specs),
        program.exported.range_constraints,
        program.exported.constants,
    )
    return Program(exported, program.weights)
