"""Convert torch's symbolic sizes (sympy) to size expressions with numbered symbols (`trtbuild.core.values.expressions`)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

from trtbuild.core.engines.engine_job import DeclaredType
from trtbuild.core.values.expressions import UNBOUNDED, Expression, interval
from trtbuild.errors import SourceError
from trtbuild.stages.program.functional import Program


@dataclass(frozen=True)
class RoundedProduct:
    """A product of a size and a fraction, rounded up or down. `operand` is the size, a sympy expression that is not
    negative."""

    operand: Any
    fraction: Fraction
    rounds_up: bool

    def apply(self, operand: Expression) -> Expression:
        numerator, denominator = self.fraction.as_integer_ratio()
        scaled: Expression = operand if numerator == 1 else ["mul", numerator, operand]
        if denominator == 1:
            return scaled
        return ["ceildiv" if self.rounds_up else "floordiv", scaled, denominator]


class Symbols:
    """The symbols of a program, numbered in the order in which they first appear in its inputs' shapes.

    Sizes that depend on data have their own numbers, in the order in which they are converted.
    """

    def __init__(self, program: Program) -> None:
        self._numbers: dict[sympy.Symbol, int] = {}
        self._data: dict[sympy.Symbol, int] = {}
        self._ranges = program.exported.range_constraints
        for node in program.input_nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for size in value.shape:
                    self.size_expression(size)

    def size_expression(self, size: Any) -> Expression:
        """Convert an int, a SymInt or a sympy expression to a size expression. Raises SourceError if it cannot be written
        with whole numbers."""
        if isinstance(size, bool):
            raise ValueError("a size cannot be a bool")
        if isinstance(size, int):
            return size
        expr = size.node.expr if isinstance(size, torch.SymInt) else size
        return self._convert(sympy.sympify(expr))

    def _convert(self, expr: Any) -> Expression:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if symbol_is_type(expr, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)):
                return ["data", self._data.setdefault(expr, len(self._data))]
            return ["sym", self._numbers.setdefault(expr, len(self._numbers))]
        rounded = self.rounded_product(expr)
        if rounded is not None:
            return rounded.apply(self._convert(rounded.operand))
        name = _OPERATORS.get(type(expr).__name__)
        if name is None:
            raise SourceError(
                f"a size of the model is {expr}, which cannot be written with whole numbers",
                code="size-expression",
                hint="make static the dims from which it is computed, or compute it with // and whole numbers",
            )
        operands = [self._convert(operand) for operand in expr.args]
        if name in ("add", "mul", "max", "min"):
            operands.sort(key=lambda operand: json.dumps(operand))
        return [name, *operands]

    def rounded_product(self, expr: Any) -> RoundedProduct | None:
        """Write a rounded product or quotient (``trunc(0.5 * s)``, ``trunc(s / 2)``) with whole numbers.

        PyTorch computes the product as a float64. A fraction replaces the float only if both products round to the same
        number at every value of the operand. Returns None for other expressions, if there is no such fraction, or if the
        operand may be negative, is unbounded or has too many values.
        """
        if type(expr).__name__ not in _ROUNDING_FUNCTIONS:
            return None
        rounds_up = type(expr).__name__ == "CeilToInt"
        (product,) = expr.args
        if type(product).__name__ == "IntTrueDiv":
            dividend, divisor = product.args
            if not divisor.is_Integer or divisor <= 0:
                return None
            operand, factor = dividend, Fraction(1, int(divisor))
            compute = partial(_divide, divisor=int(divisor))
        else:
            numbers = [part for part in product.args if part.is_Float]
            sizes = [part.args[0] for part in product.args if type(part).__name__ == "ToFloat"]
            if not (product.is_Mul and len(numbers) == len(sizes) == 1 and len(product.args) == 2 and numbers[0] > 0):
                return None
            operand, factor = sizes[0], Fraction(float(numbers[0]))
            compute = partial(_multiply, factor=float(numbers[0]))
        low, high = self.interval(operand)
        if low < 0 or high - low > _MAX_SIZE_DIFFERENCE:
            return None
        round_exactly = math.ceil if rounds_up else math.floor
        for fraction in dict.fromkeys((factor.limit_denominator(_LARGEST_DENOMINATOR), factor)):  # simplest first
            if all(round_exactly(compute(n)) == round_exactly(fraction * n) for n in range(low, high + 1)):
                return RoundedProduct(operand, fraction, rounds_up)
        return None

    def interval(self, size: Any) -> tuple[int, int]:
        """The smallest and the largest value of a size. The largest is `UNBOUNDED` if there is no bound. Raises SourceError
        like `size_expression`."""
        expression = self.size_expression(size)  # also adds new symbols to `ranges`
        return interval(expression, [(low, UNBOUNDED if high is None else high) for low, high in self.ranges])

    def sympy_text(self, expr: Any) -> str:
        """The text that sympy writes for an expression, with numbered symbols. The expression may be a condition, a float,
        or an int without a size expression."""
        expr = sympy.sympify(expr)
        for symbol in sorted(expr.free_symbols, key=str):
            self._convert(symbol)
        names = {symbol: sympy.Symbol(f"sym{k}", integer=True) for symbol, k in self._numbers.items()}
        names |= {symbol: sympy.Symbol(f"data{k}", integer=True) for symbol, k in self._data.items()}
        return str(expr.xreplace(names))

    @property
    def ranges(self) -> tuple[tuple[int, int | None], ...]:
        """(min, max) of each numbered symbol; max is None if there is no bound."""
        ranges = []
        for symbol in self._numbers:
            bounds = self._ranges.get(symbol)
            low = int(bounds.lower) if bounds is not None else 0
            has_upper_bound = bounds is not None and bounds.upper.is_finite and bounds.upper <= _LARGEST_BOUND
            high = int(bounds.upper) if has_upper_bound else None
            ranges.append((low, high))
        return tuple(ranges)

    @property
    def order(self) -> tuple[sympy.Symbol, ...]:
        """torch's symbols by number."""
        return tuple(self._numbers)


def largest_sizes(program: Program) -> list[int]:
    """For each input, the largest size that one of its axes may have; `UNBOUNDED` if an axis has no bound."""
    symbols = Symbols(program)
    shapes = [[symbols.size_expression(size) for size in node.meta["val"].shape] for node in program.input_nodes]
    ranges = [(low, UNBOUNDED if high is None else high) for low, high in symbols.ranges]
    return [max((interval(size, ranges)[1] for size in shape), default=0) for shape in shapes]


def declared_types(program: Program) -> tuple[list[DeclaredType], list[DeclaredType]]:
    """The types of the inputs and of the outputs. A type is a dtype and sizes; a dynamic size is None."""
    symbols = Symbols(program)

    def declared(node: torch.fx.Node) -> DeclaredType:
        value = node.meta["val"]
        ranges = [(low, UNBOUNDED if high is None else high) for low, high in symbols.ranges]
        ends = [interval(symbols.size_expression(size), ranges) for size in value.shape]
        sizes = tuple(low if low == high else None for low, high in ends)
        return str(value.dtype).removeprefix("torch."), sizes

    return [declared(node) for node in program.input_nodes], [declared(node) for node in program.output_nodes]


def _multiply(size: int, factor: float) -> float:
    return factor * float(size)


def _divide(size: int, divisor: int) -> float:
    return size / divisor


#: Functions that round a float to a whole number. The float is not negative, so truncating is rounding down.
_ROUNDING_FUNCTIONS = frozenset({"TruncToInt", "FloorToInt", "CeilToInt"})

#: A larger upper bound of a symbol counts as no bound.
_LARGEST_BOUND = 2**62

#: `Symbols.rounded_product` tries a fraction only if the largest and the smallest size differ by at most this number.
_MAX_SIZE_DIFFERENCE = 100_000

#: For a float such as 0.3, the nearest fraction with at most this denominator is tried before the float's exact value.
_LARGEST_DENOMINATOR = 1_000

#: Name of a class of sympy or torch → the operator in a size expression.
_OPERATORS = {
    "Add": "add",
    "Mul": "mul",
    "Max": "max",
    "Min": "min",
    "Pow": "pow",
    torch_functions.FloorDiv.__name__: "floordiv",
    torch_functions.CleanDiv.__name__: "floordiv",
    torch_functions.CeilDiv.__name__: "ceildiv",
    torch_functions.Mod.__name__: "mod",
    torch_functions.PythonMod.__name__: "mod",
    torch_functions.PowByNatural.__name__: "pow",
}
