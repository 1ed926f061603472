"""Find pairs of sizes at which a guard on two symbols fails. The result is empty only if the guard holds at every pair.

Rules
1. A guard may compare two sums of products of sizes (``x.shape[0] + 17 == y.shape[0]``, ``h * w <= 4096``). If one symbol
   is in no product with itself, the difference of both sides is linear in this symbol. So for each size of the other
   symbol, three sizes of this symbol suffice: the smallest, the largest, and the one where both sides are equal. The size
   in the middle is tried, too, so that the result also has pairs that are not at the ends.
2. For other guards (with ``//`` and ``%``), all sizes of one symbol are tried at once, as a tensor, for each size of the
   other.
3. The result is None if neither rule applies, for example to ``and``, ``max`` and floats, or if there are too many sizes.
   Then only a sample can be tried.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch

#: Name of a size in a guard → the position of its symbol, 0 or 1; None for the size of a static axis.
Names = Mapping[str, int | None]
#: Evaluates a compiled part of a guard, at sizes of the first and the second symbol.
Evaluate = Callable[[CodeType, Any, Any], Any]

#: Rule 1 tries at most this many sizes of the other symbol.
_MAX_ROWS = 1_000_000
#: Rule 2 tries at most this many pairs.
_MAX_PAIRS = 1 << 26

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def failing_pairs(
    guard: ast.expr, names: Names, evaluate: Evaluate, ranges: tuple[range, range]
) -> list[tuple[int, int]] | None:
    """Pairs at which `guard` fails, in ascending order; an empty list if it holds at every pair. None under rule 3.

    `ranges` are all sizes of both symbols. The result has only a few of the pairs at which the guard fails."""
    for position in (0, 1):
        if _is_difference_linear(guard, names, position) and len(ranges[1 - position]) <= _MAX_ROWS:
            return sorted(_linear_failures(guard, evaluate, ranges, position))
    if len(ranges[0]) * len(ranges[1]) > _MAX_PAIRS or _has_floats(guard):
        return None
    try:
        return sorted(_tensor_failures(guard, evaluate, ranges))
    except Exception:  # a function or an operator that takes no tensors, or a division by 0
        return None


def _linear_failures(
    guard: Any, evaluate: Evaluate, ranges: tuple[range, range], position: int
) -> Iterator[tuple[int, int]]:
    """Apply rule 1 to a guard that is linear in the symbol at `position`. `guard` is an `ast.Compare`."""
    rows, columns = _tensor(ranges[1 - position]), ranges[position]
    holds = _COMPARISONS[type(guard.ops[0])]
    difference = _compiled(ast.BinOp(guard.left, ast.Sub(), guard.comparators[0]))
    at_0, at_1 = (
        torch.as_tensor(evaluate(difference, *((rows, size) if position == 1 else (size, rows)))).expand(rows.shape)
        for size in (0, 1)
    )
    slope = at_1 - at_0
    candidates = [torch.full_like(rows, size) for size in (columns[0], columns[len(columns) // 2], columns[-1])]
    root = -at_0 // torch.where(slope == 0, 1, slope)  # where both sides are equal, if the division is exact
    candidates.append(root)
    for column in candidates:
        is_size = (column >= columns[0]) & (column <= columns[-1]) & ((column - columns[0]) % columns.step == 0)
        failing = (is_size & ~holds(at_0 + slope * column, 0)).nonzero().flatten()
        for index in _spread(failing):
            row, size = int(rows[index]), int(column[index])
            yield (row, size) if position == 1 else (size, row)


def _tensor_failures(guard: ast.expr, evaluate: Evaluate, ranges: tuple[range, range]) -> Iterator[tuple[int, int]]:
    """Apply rule 2."""
    code = _compiled(guard)
    position = int(len(ranges[0]) < len(ranges[1]))  # the symbol with more sizes becomes a tensor
    columns = _tensor(ranges[position])
    for row in ranges[1 - position]:
        holds = evaluate(code, *((row, columns) if position == 1 else (columns, row)))
        for size in _spread(columns[~torch.as_tensor(holds, dtype=torch.bool).expand(columns.shape)]):
            yield (row, int(size)) if position == 1 else (int(size), row)


def _tensor(sizes: range) -> torch.Tensor:
    return torch.arange(sizes.start, sizes.stop, sizes.step)


def _spread(values: torch.Tensor) -> list[torch.Tensor]:
    """The first, the middle and the last one of `values`, if there are any."""
    return [values[index] for index in (0, len(values) // 2, -1)] if len(values) else []


def _is_difference_linear(guard: ast.expr, names: Names, position: int) -> bool:
    """Whether `guard` compares two sums of products, and is linear in the symbol at `position`."""
    if not (isinstance(guard, ast.Compare) and len(guard.ops) == 1 and type(guard.ops[0]) in _COMPARISONS):
        return False
    try:
        return max(_degree(side, names, position) for side in (guard.left, guard.comparators[0])) <= 1
    except ValueError:
        return False


def _degree(expression: ast.expr, names: Names, position: int) -> int:
    """The degree of a polynomial in the symbol at `position`. Raises ValueError for other expressions."""
    match expression:
        case ast.Constant(value=int()):
            return 0
        case ast.Name(id=name) if name in names:
            return int(names[name] == position)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _degree(operand, names, position)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return max(_degree(left, names, position), _degree(right, names, position))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _degree(left, names, position) + _degree(right, names, position)
    raise ValueError("not a polynomial")


def _has_floats(guard: ast.expr) -> bool:
    """Whether `guard` may compute floats. torch rounds them in another way than Python."""
    return any(
        isinstance(node, ast.Div | ast.Pow) or isinstance(getattr(node, "value", None), float)
        for node in ast.walk(guard)
    )


def _compiled(expression: ast.expr) -> CodeType:
    return compile(ast.fix_missing_locations(ast.Expression(expression)), "<guard>", "eval")
