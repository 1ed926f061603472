"""What is compiled has the sizes of what was traced: each step on the way is held to it.

Rules
1. A program that is read back has the symbols that were stored. (Reading makes them anew, and torch may put a number in the
   place of one. It may write a stride in a simpler way too, so texts are not compared.)
2. What a step makes of a program takes and gives what the program does: the same symbols with the same ranges, and
   outputs of the same dtypes and sizes at every point.
3. At every point each value inside has the sizes that it is said to have (`trtbuild.stages.program.sizes`).
4. A difference is a fault of ours or of PyTorch, never of the model: InconsistentShapes, and the step leaves no record.
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
from trtbuild.stages.program.sizes import Point, Type, difference, points_of, said_at, shown
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class Signature:
    """What a program takes and gives, by the numbers of its symbols: (dtype, sizes) of each tensor, and the ranges."""

    inputs: tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]
    outputs: tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]
    ranges: tuple[tuple[int, int | None], ...]


def read(data: bytes) -> Program:
    """The program that was stored as `data` (rule 1). Raises InconsistentShapes."""
    program = Program.from_bytes(data)
    for node in program.placeholders:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt) and size.node.shape_env.replacements.keys() & _stored(program):
                raise InconsistentShapes("a size of a program was replaced by another while it was read")
    return program


def _stored(program: Program) -> set[sympy.Symbol]:
    """The symbols of inputs that a program was stored with."""
    symbols = program.exported.range_constraints
    return {symbol for symbol in symbols if symbol.is_Symbol and symbol_is_type(symbol, SymT.SIZE)}


def signature(program: Program) -> Signature:
    """The signature of a program."""
    symbols = Symbols(program)

    def types(nodes: Sequence[torch.fx.Node]) -> tuple[tuple[torch.dtype, tuple[Expression, ...]], ...]:
        values = [node.meta["val"] for node in nodes]
        return tuple((value.dtype, tuple(symbols.expression(size) for size in value.shape)) for value in values)

    return Signature(types(program.input_nodes), types(program.output_nodes), symbols.ranges)


def refuse_changes(program: Program, traced: Signature, step: str, more: Sequence[Sequence[int]] = ()) -> None:
    """Raise InconsistentShapes where `program`, which `step` made, breaks rule 2 or 3. `more` are points to look at beside
    those that follow from the ranges: numbers by symbol."""
    own = signature(program)
    if (own.inputs, own.ranges) != (traced.inputs, traced.ranges):
        raise InconsistentShapes(f"{step} has changed the symbols of the model's inputs")
    points = points_of(program, more)
    for point in points:
        numbers = list(point.values())
        for number, (node, wanted) in enumerate(zip(program.output_nodes, traced.outputs, strict=True)):
            (found,) = said_at(node.meta["val"], point)
            if not _agree(found, _at(wanted, numbers)):
                raise InconsistentShapes(
                    f"{step} has made {shown([found])} of output {number}, which is {shown([_at(wanted, numbers)])} in the "
                    f"traced model{_where(numbers)}"
                )
    refuse_inconsistency(program, points, step)


def refuse_inconsistency(program: Program, points: Sequence[Point], step: str) -> None:
    """Raise InconsistentShapes where a value of `program` is not what it is said to be (rule 3)."""
    found = difference(program, points)
    if found is not None:
        raise InconsistentShapes(f"after {step}, {found}{_where(list(found.point.values()))}")


def _at(type_: tuple[torch.dtype, tuple[Expression, ...]], numbers: Sequence[int]) -> Type:
    dtype, sizes = type_
    return dtype, tuple(None if depends_on_data(size) else evaluate(size, numbers) for size in sizes)


def _agree(one: Type, other: Type) -> bool:
    (dtype, sizes), (wanted, expected) = one, other
    pairs = list(zip(sizes, expected, strict=False))
    known = all(a == b for a, b in pairs if a is not None and b is not None)
    return dtype == wanted and len(sizes) == len(expected) and known


def _where(numbers: Sequence[int]) -> str:
    return f", where {', '.join(f'd{k} = {number}' for k, number in enumerate(numbers))}" if numbers else ""
