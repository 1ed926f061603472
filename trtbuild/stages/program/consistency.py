"""Check after each step that the program still has the sizes of the traced program.

Rules
1. When torch reads a stored program, it creates the symbols of its dynamic sizes again. torch must not replace a symbol
   of an input by a number or by another symbol. The texts of programs are not compared, because torch may simplify a
   stride.
2. The result of a step has the inputs, the symbols and the ranges of the traced program. At every point (a number for
   each symbol), its outputs have the dtypes and sizes of the traced program.
3. At every point, each inner value has the sizes that its node declares (`trtbuild.stages.program.sizes`).
4. A difference is a bug in trtbuild or in PyTorch, never in the model. It raises InconsistentShapes, so the step leaves no
   record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from trtbuild.core.values.expressions import Expression, depends_on_data, evaluate
from trtbuild.errors import InconsistentShapes
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.sizes import Point, Type, declared_types_at, first_difference, points_of, types_text
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class Signature:
    """The types of a program's inputs and outputs, as (dtype, sizes), and the ranges of its symbols d0, d1, … in order."""

    inputs: tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]
    outputs: tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]
    ranges: tuple[tuple[int, int | None], ...]


def read_program(data: bytes) -> Program:
    """Read a stored program (rule 1). Raises InconsistentShapes, and the errors of `Program.from_bytes`."""
    program = Program.from_bytes(data)
    for node in program.placeholders:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt) and size.node.shape_env.replacements.keys() & _input_symbols(program):
                raise InconsistentShapes("torch replaced the size of an input by another while it read a program")
    return program


def _input_symbols(program: Program) -> set[sympy.Symbol]:
    symbols = program.exported.range_constraints
    return {symbol for symbol in symbols if symbol.is_Symbol and symbol_is_type(symbol, SymT.SIZE)}


def signature(program: Program) -> Signature:
    symbols = Symbols(program)

    def types(nodes: Sequence[torch.fx.Node]) -> tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]:
        values = [node.meta["val"] for node in nodes]
        return tuple((value.dtype, tuple(symbols.size_expression(size) for size in value.shape)) for value in values)

    return Signature(types(program.input_nodes), types(program.output_nodes), symbols.ranges)


def refuse_changes(program: Program, traced: Signature, step: str, extra_points: Sequence[Sequence[int]] = ()) -> None:
    """Raise InconsistentShapes if `program`, the result of `step`, breaks rule 2 or 3.

    `extra_points` are checked, too. Each is a list of numbers, in the order of the symbols.
    """
    current = signature(program)
    if (current.inputs, current.ranges) != (traced.inputs, traced.ranges):
        raise InconsistentShapes(f"{step} has changed the symbols of the model's inputs")
    points = points_of(program, extra_points)
    for point in points:
        numbers = list(point.values())
        for number, (node, expected) in enumerate(zip(program.output_nodes, traced.outputs, strict=True)):
            (actual,) = declared_types_at(node.meta["val"], point)
            if not _agree(actual, _type_at(expected, numbers)):
                raise InconsistentShapes(
                    f"after {step}, output {number} is {types_text([actual])}, but it is "
                    f"{types_text([_type_at(expected, numbers)])} in the traced model{_point_text(numbers)}"
                )
    refuse_inconsistency(program, points, step)


def refuse_inconsistency(program: Program, points: Sequence[Point], step: str) -> None:
    """Raise InconsistentShapes if `program`, the result of `step`, breaks rule 3."""
    wrong_value = first_difference(program, points)
    if wrong_value is not None:
        raise InconsistentShapes(f"after {step}, {wrong_value}{_point_text(list(wrong_value.point.values()))}")


def _type_at(type_: tuple[torch.dtype, tuple[Expression, ...]], numbers: Sequence[int]) -> Type:
    dtype, sizes = type_
    return dtype, tuple(None if depends_on_data(size) else evaluate(size, numbers) for size in sizes)


def _agree(actual: Type, expected: Type) -> bool:
    (dtype, sizes), (expected_dtype, expected_sizes) = actual, expected
    pairs = list(zip(sizes, expected_sizes, strict=False))
    sizes_agree = all(a == b for a, b in pairs if a is not None and b is not None)
    return dtype == expected_dtype and len(sizes) == len(expected_sizes) and sizes_agree


def _point_text(numbers: Sequence[int]) -> str:
    return f" (at {', '.join(f'd{k} = {number}' for k, number in enumerate(numbers))})" if numbers else ""
