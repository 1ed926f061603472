"""Find sizes inside the declared ranges at which a guard of torch.export fails.

A guard is a condition on sizes that torch assumes while it traces a model. If a guard on one named dim fails inside the
dim's range, torch.export reports it. It does not report three kinds of guards (found by experiment, torch 2.13):
* guards on a multiple of a dim (``x.shape[0] % 4 == 0`` under ``multiple_of: 2``),
* relations between two dims (``h <= w``),
* assumptions that a size is not 1. torch.export would report one about a computed size (``x.shape[0] - 1``), but
  `guard_filter` removes it before.

This module evaluates the guards over the ranges. `proof` tries sizes at which a guard fails. If model and program agree
there, the guard does no harm.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from trtbuild.core.model.shapes import ShapePlan, Symbol, SymbolAxis, axes_of_symbol
from trtbuild.core.model.spec import Input
from trtbuild.stages.trace.export.guards.pairs import failing_pairs

#: A guard on one symbol is tried at every size, if the symbol has at most this many sizes.
MAX_SIZES = 1_000_000
#: The approximate limit of points for a guard that is tried neither at every size nor at all pairs of sizes (`pairs`).
_MAX_TRIED_SIZES = 4_000
#: `Guard.sample` tries this number of the smallest and of the largest sizes of each symbol, if there are several symbols.
_FEW = 3
#: If guards have added this many new points, each further guard adds at most one. Points that assumptions add do not count.
_MAX_NEW_POINTS = 12


@dataclass(frozen=True)
class GuardFailure:
    """A point (one size for each symbol) at which a guard fails. `text` is the guard with the manifest's names. `hint` is
    the advice for the case that model and program differ there."""

    sizes: tuple[int, ...]
    text: str
    hint: str | None = None


def guard_failures(
    guards: Iterable[str],
    arguments: Mapping[str, Any],
    plan: ShapePlan,
    inputs: Sequence[Input],
    points: Iterable[tuple[int, ...]] = (),
    assumptions: Sequence[str] = (),
) -> list[GuardFailure]:
    """Find points at which guards fail. `arguments` are the arguments of forward, with the number of the manifest's input
    instead of each tensor.

    The proof tries `points` in any case. They and the points of earlier results are *known*. If a guard fails at a known
    point where none of its dims has its smallest possible size (1, or `multiple_of`), this point is its only result. For
    any other guard that fails, up to three new points are added. After `_MAX_NEW_POINTS` new points, at most one is added.

    `assumptions` are guards that `guard_filter` has removed or avoided. New points are always added for an assumption that
    fails."""
    results: list[GuardFailure] = []
    tried = list(points)
    new_points = 0
    distinct = dict.fromkeys([*((code, False) for code in guards), *((code, True) for code in assumptions)])
    for code, is_assumed in distinct:
        guard = Guard.parse(code, arguments, plan, inputs)
        if guard is None or not guard.symbols:
            continue
        known_points = [sizes for sizes in tried if not guard.holds([sizes[s] for s in guard.symbols])]
        if known_points and not is_assumed:
            # At size 1, both branches often give the same result: a softmax over one element, for example.
            telling_points = [sizes for sizes in known_points if not _has_size_one(sizes, guard.symbols, plan)]
            results.append(GuardFailure((telling_points or known_points)[0], guard.text, guard.hint()))
            if telling_points:
                continue
        failures = guard.failing_sizes()
        if not failures:
            continue
        smallest, middle, largest = failures[0], failures[len(failures) // 2], failures[-1]
        hint = guard.hint()
        # after the limit, the largest sizes alone
        is_limited = new_points >= _MAX_NEW_POINTS and not is_assumed
        for values in dict.fromkeys((largest,) if is_limited else (smallest, middle, largest)):
            sizes = [symbol.example for symbol in plan.symbols]
            for symbol, size in zip(guard.symbols, values, strict=True):
                sizes[symbol] = size
            results.append(GuardFailure(tuple(sizes), guard.text, hint))
            tried.append(tuple(sizes))
            if not is_assumed:
                new_points += 1
    return results


class Guard:
    """A guard as a function of its symbols. `symbols` are their numbers in the shape plan, in ascending order."""

    def __init__(
        self,
        tree: ast.Expression,
        names: Mapping[str, int | SymbolAxis],
        text: str,
        plan: ShapePlan,
        inputs: Sequence[Input],
    ) -> None:
        self.text = text
        self._tree = tree
        self._code = compile(ast.fix_missing_locations(tree), "<guard>", "eval")
        self._names = names
        self._plan = plan
        self._inputs = inputs
        self.symbols = tuple(sorted({axis.symbol for axis in names.values() if isinstance(axis, SymbolAxis)}))

    @classmethod
    def parse(cls, code: str, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]) -> Guard | None:
        """Parse a guard; None if it is not about the sizes of inputs, or cannot be evaluated."""
        reader = _SizeReader(arguments, plan, inputs)
        try:
            tree = reader.visit(ast.parse(code.strip(), mode="eval"))
        except (SyntaxError, LookupError, ValueError, TypeError):
            return None
        if any(isinstance(node, ast.Name) and node.id == "L" for node in ast.walk(tree)):
            return None
        text = ast.unparse(tree)
        for name, place in reader.places.items():
            text = text.replace(name, place)
        guard = cls(tree, reader.names, text, plan, inputs)
        try:
            guard.holds([plan.symbols[symbol].example for symbol in guard.symbols])
        except Exception:
            return None
        return guard

    def holds(self, values: Sequence[int]) -> bool:
        """Whether the guard holds if `symbols` have these sizes. A division by 0 or an overflow means that it fails."""
        try:
            return bool(self._evaluate(self._code, *values))
        except (ZeroDivisionError, OverflowError):
            return False

    def _evaluate(self, code: CodeType, *values: Any) -> Any:
        """Evaluate the guard, or a part of it, if `symbols` have these sizes."""
        by_symbol = dict(zip(self.symbols, values, strict=True))
        names = {
            name: by_symbol[axis.symbol] if isinstance(axis, SymbolAxis) else axis for name, axis in self._names.items()
        }
        return eval(code, _GUARD_NAMESPACE, names)

    def all_failing_sizes(self) -> list[int] | None:
        """All sizes at which a guard on one symbol fails; None if the symbol has more than `MAX_SIZES` sizes."""
        (symbol,) = (self._plan.symbols[number] for number in self.symbols)
        sizes = _all_sizes(symbol)
        return None if len(sizes) > MAX_SIZES else [size for size in sizes if not self.holds([size])]

    def sample(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Try the guard at a bounded number of sizes. Returns those at which it holds, and those at which it fails.

        The tried sizes are the smallest and the largest ones of each symbol, but none up to 1 (or up to `multiple_of`)."""
        count = _MAX_TRIED_SIZES // 2 if len(self.symbols) == 1 else _FEW
        ranges: list[Sequence[int]] = []
        for symbol in (self._plan.symbols[number] for number in self.symbols):
            sizes = _all_sizes(symbol)
            sizes = sizes[sum(size <= symbol.multiple_of for size in sizes[:2]) :]
            ranges.append(sorted({*sizes[:count], *sizes[-count:]}))
        tried = {values: self.holds(values) for values in itertools.product(*ranges)}
        return [values for values, holds in tried.items() if holds], [
            values for values, holds in tried.items() if not holds
        ]

    def failing_sizes(self) -> list[tuple[int, ...]]:
        """Sizes at which the guard fails, smallest first; an empty list if no such sizes are found.

        A guard on two symbols is tried at all pairs, if possible (`pairs`). Other guards are tried at a sample of sizes, if
        the symbols have too many of them."""
        if len(self.symbols) == 2:
            positions = {
                name: self.symbols.index(axis.symbol) if isinstance(axis, SymbolAxis) else None
                for name, axis in self._names.items()
            }
            first, second = (_all_sizes(self._plan.symbols[symbol]) for symbol in self.symbols)
            pairs = failing_pairs(self._tree.body, positions, self._evaluate, (first, second))
            if pairs is not None:
                return list[tuple[int, ...]](pairs)
        ranges = [_tried_sizes(self._plan.symbols[symbol], len(self.symbols)) for symbol in self.symbols]
        return sorted(values for values in itertools.product(*ranges) if not self.holds(values))

    def hint(self) -> str | None:
        """Advice to change the manifest so that the guard always holds; None if there is no such advice."""
        if len(self.symbols) != 1:
            return None
        (number,) = self.symbols
        symbol = self._plan.symbols[number]
        sizes = _tried_sizes(symbol, 1)
        holding_sizes = [size for size in sizes if self.holds([size])]
        if len(holding_sizes) in (0, len(sizes)):
            return None
        holds = set(holding_sizes)
        step = math.gcd(*holding_sizes)
        places = axes_of_symbol(self._plan, self._inputs, number)
        if step > symbol.multiple_of and all(size in holds for size in sizes if size % step == 0):
            return f"write dims: {{{symbol.name}: {{at: [{', '.join(places)}], multiple_of: {step}}}}}"
        if all(size in holds for size in sizes if holding_sizes[0] <= size <= holding_sizes[-1]):
            return f"change the profiles so that {places[0]} is at least {holding_sizes[0]} and at most {holding_sizes[-1]}"
        return None


class _SizeReader(ast.NodeTransformer):
    """Replaces each ``L['x'].size()[2]`` in an expression by a name, and records the axis of that name."""

    def __init__(self, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]) -> None:
        self._arguments = arguments
        self._plan = plan
        self._inputs = inputs
        #: New name → its axis, or the size of the axis if it is static.
        self.names: dict[str, int | SymbolAxis] = {}
        #: New name → the axis in the manifest's words: ``image.2``.
        self.places: dict[str, str] = {}

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "size"):
            return self.generic_visit(node)
        number = self._input_number(call.func.value)
        axis = ast.literal_eval(node.slice)
        name = f"_size_{number}_{axis}_"
        self.names[name] = self._plan.shapes[number][axis]
        self.places[name] = f"{self._inputs[number].name}.{axis}"
        return ast.Name(name, ast.Load())

    def _input_number(self, node: ast.expr) -> int:
        path: list[Any] = []
        while isinstance(node, ast.Subscript):
            path.append(ast.literal_eval(node.slice))
            node = node.value
        if not (isinstance(node, ast.Name) and node.id == "L"):
            raise ValueError("not a local of forward")
        value: Any = self._arguments
        for key in reversed(path):
            value = value[key]
        if not isinstance(value, int):
            raise ValueError("not an input")
        return value


def axis_of(
    code: str, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]
) -> int | SymbolAxis | None:
    """The axis in torch's expression ``L['x'].size()[2]``, or its size if it is static. None for other expressions."""
    reader = _SizeReader(arguments, plan, inputs)
    with contextlib.suppress(SyntaxError, LookupError, ValueError, TypeError):
        reader.visit(ast.parse(code, mode="eval").body)
    return next(iter(reader.names.values()), None)


def arguments_as_input_numbers(signature: inspect.Signature, inputs: Sequence[Input]) -> dict[str, Any]:
    """Parameter of forward → its argument, with the number of the manifest's input instead of each tensor.

    A keyword input that forward takes in ``**kwargs`` is in the result by its own name, too."""
    args = [number for number, entry in enumerate(inputs) if not entry.keyword]
    kwargs = {entry.name: number for number, entry in enumerate(inputs) if entry.keyword}
    bound = dict(signature.bind(*args, **kwargs).arguments)
    return kwargs | bound


def _has_size_one(sizes: Sequence[int], symbols: Sequence[int], plan: ShapePlan) -> bool:
    """Whether one of `symbols` has its smallest possible size at a point: 1, or `multiple_of`."""
    return any(sizes[symbol] == plan.symbols[symbol].multiple_of for symbol in symbols)


def _all_sizes(symbol: Symbol) -> range:
    return range(symbol.min, symbol.max + 1, symbol.multiple_of)


def _tried_sizes(symbol: Symbol, symbol_count: int) -> list[int]:
    """The sizes of a symbol at which a guard on `symbol_count` symbols is tried.

    If the symbol has too many sizes, these are its smallest and largest sizes, and an even spread between them."""
    sizes = _all_sizes(symbol)
    count = max(2, int(_MAX_TRIED_SIZES ** (1 / symbol_count)))
    if len(sizes) <= (MAX_SIZES if symbol_count == 1 else count):
        return list(sizes)
    third = max(1, count // 3)
    spread = sizes[:: max(1, len(sizes) // third)]
    return sorted({*sizes[:third], *sizes[-third:], *spread})


_GUARD_NAMESPACE = {**SYMPY_INTERP, "math": math, "inf": math.inf, "torch": torch}
