"""Size expressions: the size of an axis as a function of symbols, which are the variables for a model's dynamic dims.

An expression is plain JSON. It has one of these forms:

* an int
* ``["sym", k]``: the symbol with number k
* ``["data", k]``: a size that is known only when the model runs, such as the length of ``nonzero(x)``
* ``[operator, operand, …]``: the operators are ``add mul floordiv mod max min pow ceildiv``, with sympy's meaning.
  ``floordiv`` and ``mod`` are Python's ``//`` and ``%``, and ``ceildiv`` rounds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

Expression: TypeAlias = "int | Sequence[str | int | Expression]"

#: The upper end of the interval of a size that depends on data. TensorRT stores sizes in 64 bits, but no size may have
#: more than 31 bits.
UNBOUNDED = 2**31 - 1

#: The largest exponent for which a power of a number other than -1, 0 and 1 can be a size.
_MAX_EXPONENT = 63

#: The smallest and the largest value.
Interval = tuple[int, int]


def evaluate(expression: Expression, symbols: Sequence[int]) -> int:
    """The size if symbol k has the value `symbols[k]`.

    Raises ValueError if `expression` is not valid, if the size depends on data, or if `_apply` refuses an operation. Raises
    IndexError for a symbol without a value."""
    if isinstance(expression, int):
        return expression
    operator, *operands = expression
    if operator == "sym":
        return symbols[_symbol_number(operands)]
    if operator == "data":
        raise ValueError("the size depends on data")
    values = [evaluate(_checked_operand(operand), symbols) for operand in operands]
    return _apply(str(operator), values)


def interval(expression: Expression, symbols: Sequence[Interval]) -> Interval:
    """Bounds of the size if each symbol is in its interval (both ends included).

    Raises ValueError if `expression` is not valid, and IndexError for a symbol without an interval.

    The interval may be too large, because each occurrence of a symbol is bounded separately: for ``s - s`` it is wider than
    0..0. The sizes at both ends of the symbols' intervals would be wrong bounds, because a modulo is not monotonic.
    """
    if isinstance(expression, int):
        return expression, expression
    operator, *operands = expression
    if operator == "sym":
        return symbols[_symbol_number(operands)]
    if operator == "data":
        return 0, UNBOUNDED
    bounds = [interval(_checked_operand(operand), symbols) for operand in operands]
    return _bounds(str(operator), bounds)


def expression_text(expression: Expression, symbols: Sequence[str], units: Sequence[int] = ()) -> str:
    """The expression as text, with the symbols' names: ``2*batch``.

    A dim with ``multiple_of: 32`` is 32 times its symbol. If `symbols` are the names of dims, `units` has these
    factors. For the dim ``height`` with the unit 32, the text of ``32*s`` is ``height``, and that of ``s`` is
    ``height//32``.
    """
    return _text(expression, symbols, units)[0]


_SUM, _PRODUCT, _ATOM = range(3)
_SIGNS = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%"}


def _text(expression: Expression, symbols: Sequence[str], units: Sequence[int]) -> tuple[str, int]:
    """The text of an expression, and the precedence of its operator (`_SUM`, `_PRODUCT` or `_ATOM`)."""
    if isinstance(expression, int):
        return str(expression), _ATOM
    operator, *operands = expression
    if operator == "sym":
        name, unit = _name_and_unit(_symbol_number(operands), symbols, units)
        return (f"{name}//{unit}", _PRODUCT) if unit > 1 else (name, _ATOM)
    if operator == "mul":
        return _product([_checked_operand(part) for part in operands], symbols, units)
    parts = [_text(_checked_operand(part), symbols, units) for part in operands]
    if operator == "add":
        return "+".join(text for text, _ in parts), _SUM
    if operator in _SIGNS:
        return _SIGNS[str(operator)].join(_in_parentheses(part) for part in parts), _PRODUCT
    return f"{operator}({', '.join(text for text, _ in parts)})", _ATOM


def _product(factors: Sequence[Expression], symbols: Sequence[str], units: Sequence[int]) -> tuple[str, int]:
    number = math.prod(factor for factor in factors if isinstance(factor, int))
    parts = []
    for factor in factors:
        if isinstance(factor, int):
            continue
        name, unit = _name_and_unit(_symbol_number(factor[1:]), symbols, units) if factor[0] == "sym" else ("", 1)
        if unit > 1 and number % unit == 0:
            number //= unit
            parts.append((name, _ATOM))
        else:
            parts.append(_text(factor, symbols, units))
    if number != 1 or not parts:
        parts.insert(0, (str(number), _ATOM))
    return parts[0] if len(parts) == 1 else ("*".join(_in_parentheses(part) for part in parts), _PRODUCT)


def _name_and_unit(symbol: int, symbols: Sequence[str], units: Sequence[int]) -> tuple[str, int]:
    name = symbols[symbol] if symbol < len(symbols) else f"s{symbol}"
    return name, units[symbol] if symbol < len(units) else 1


def _in_parentheses(part: tuple[str, int]) -> str:
    text, precedence = part
    return text if precedence == _ATOM else f"({text})"


def freeze(expression: Any) -> Expression:
    """An expression from JSON, with tuples in place of lists."""
    return tuple(map(freeze, expression)) if isinstance(expression, list) else expression


def symbols_of(expression: Expression) -> frozenset[int]:
    """The numbers of the symbols in the expression."""
    if isinstance(expression, int):
        return frozenset()
    operator, *operands = expression
    if operator == "sym":
        return frozenset({_symbol_number(operands)})
    if operator == "data":
        return frozenset()
    return frozenset().union(*(symbols_of(_checked_operand(operand)) for operand in operands))


def depends_on_data(expression: Expression) -> bool:
    """Whether the size is known only when the model runs."""
    if isinstance(expression, int):
        return False
    operator, *operands = expression
    return operator == "data" or (
        operator != "sym" and any(depends_on_data(_checked_operand(operand)) for operand in operands)
    )


def _symbol_number(operands: Sequence[object]) -> int:
    if len(operands) != 1 or not isinstance(operands[0], int):
        raise ValueError(f"a symbol is named by one number, not {operands!r:.80}")
    return operands[0]


def _checked_operand(operand: str | int | Expression) -> Expression:
    if isinstance(operand, str):
        raise ValueError(f"{operand!r} is not an operand")
    return operand


def _apply(operator: str, values: Sequence[int]) -> int:
    """The result of an operator.

    Raises ValueError for an unknown operator, for a division by zero, and for a power whose exponent is negative or whose
    result could be too large to be a size."""
    if operator == "add":
        return sum(values)
    if operator == "mul":
        return math.prod(values)
    if operator == "max":
        return max(values)
    if operator == "min":
        return min(values)
    left, right = values
    if operator in ("floordiv", "ceildiv", "mod") and right == 0:
        raise ValueError(f"{operator} by zero")
    if operator == "floordiv":
        return left // right
    if operator == "ceildiv":
        return -(-left // right)
    if operator == "mod":
        return left % right
    if operator == "pow":
        if right < 0 or (right > _MAX_EXPONENT and abs(left) > 1) or (right > 1 and left.bit_length() > 64):
            raise ValueError(f"{left} to the power of {right} is not a size")
        return int(left**right)
    raise ValueError(f"no operator {operator!r}")


def _bounds(operator: str, bounds: Sequence[Interval]) -> Interval:
    if operator == "add":
        return sum(low for low, _ in bounds), sum(high for _, high in bounds)
    if operator in ("max", "min"):
        choose = max if operator == "max" else min
        return choose(low for low, _ in bounds), choose(high for _, high in bounds)
    if operator == "mul":
        low, high = 1, 1
        for factor in bounds:
            corners = [a * b for a in (low, high) for b in factor]
            low, high = min(corners), max(corners)
        return low, high
    left, right = bounds
    if operator == "mod":
        if left[0] >= 0 and left[1] < right[0]:
            return left
        return min(0, right[0] + 1), max(0, right[1] - 1)  # the result has the sign of the divisor
    if operator in ("floordiv", "ceildiv"):
        return _quotient(operator, left, right)
    if operator == "pow":
        return _power(left, right)
    raise ValueError(f"no operator {operator!r}")


def _quotient(operator: str, left: Interval, right: Interval) -> Interval:
    low, high = right[0] or 1, right[1] or -1  # a divisor is never 0, so an end at 0 moves to 1 or to -1
    if low < 0 < high:
        largest = max(abs(left[0]), abs(left[1]))
        return -largest, largest
    corners = [_apply(operator, (a, b)) for a in left for b in (low, high)]
    return min(corners), max(corners)


def _power(left: Interval, right: Interval) -> Interval:
    # Only the bases 0, 1 and -1 have powers with exponents above `_MAX_EXPONENT` (`_apply`).
    low, high = (min(max(0, exponent), _MAX_EXPONENT) for exponent in right)
    if left[0] < 0:
        largest = max(1, abs(left[0]), abs(left[1])) ** high
        return -largest, largest
    corners = [base**exponent for base in left for exponent in (low, high)]
    return min(corners), max(corners)
