"""Find sizes inside the declared ranges at which a guard of torch.export does not hold.

torch.export reports a guard on one named dim that fails inside its range. It does not report three kinds of guards
(found by experiment, torch 2.13): guards on a derived dim (``x.shape[0] % 4 == 0`` under ``multiple_of: 2``), relations
between two dims (``h <= w``), and sizes that it assumes not to be 1. (It does report a derived size that it assumes not to
be 1; `guard_filter` removes this report.) The program's guards contain these. Each guard is evaluated over the ranges, and
`proof` tries the sizes at which it fails. If model and program agree there, too, the guard does no harm.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from trtbuild.core.model.shapes import ShapePlan, SymbolAxis, axes_of_symbol
from trtbuild.core.model.spec import Input

#: The largest number of sizes that are tried for one guard.
_TRIED = 4_000
#: The largest number of guards whose failing sizes are proven in addition to the profiles' sizes.
_GUESSES = 12


@dataclass(frozen=True)
class Guess:
    """Sizes of all symbols at which the guard `text` fails, and a hint in case the proof fails there."""

    sizes: tuple[int, ...]
    text: str
    hint: str | None = None


def guesses(
    guards: Iterable[str],
    arguments: Mapping[str, Any],
    plan: ShapePlan,
    inputs: Sequence[Input],
    points: Iterable[tuple[int, ...]] = (),
    assumed: Sequence[str] = (),
) -> list[Guess]:
    """Find sizes that break guards. `arguments` are the arguments of forward, with the number of the manifest's input
    instead of each tensor. For a guard that one of `points` or an earlier guess breaks, that point is the only guess.

    `assumed` are guards that were taken out of torch's check (`guard_filter`). Each of them gets its own guesses. `guards`
    get about `_GUESSES` new guesses together."""
    results: list[Guess] = []
    tried = list(points)
    unreported = 0
    for code, is_assumed in [*((code, False) for code in guards), *((code, True) for code in assumed)]:
        guard = Guard.read(code, arguments, plan, inputs)
        failing = guard.failing() if guard is not None and guard.symbols else []
        if guard is None or not failing:
            continue
        known = next((sizes for sizes in tried if not guard.holds([sizes[s] for s in guard.symbols])), None)
        if known is not None and not is_assumed:
            results.append(Guess(known, guard.text, guard.hint()))
            continue
        if not is_assumed and unreported >= _GUESSES:
            continue
        for values in dict.fromkeys((failing[0], failing[len(failing) // 2], failing[-1])):
            sizes = [symbol.example for symbol in plan.symbols]
            for symbol, size in zip(guard.symbols, values, strict=True):
                sizes[symbol] = size
            results.append(Guess(tuple(sizes), guard.text, guard.hint()))
            tried.append(tuple(sizes))
            unreported += not is_assumed
    return results


class Guard:
    """A guard as a function of its symbols."""

    def __init__(
        self, code: Any, names: Mapping[str, int | SymbolAxis], text: str, plan: ShapePlan, inputs: Sequence[Input]
    ) -> None:
        self.text = text
        self._code = code
        self._names = names
        self._plan = plan
        self._inputs = inputs
        self.symbols = tuple(sorted({axis.symbol for axis in names.values() if isinstance(axis, SymbolAxis)}))

    @classmethod
    def read(cls, code: str, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]) -> Guard | None:
        """Parse a guard; None if it is not about the sizes of inputs."""
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
        guard = cls(compile(ast.fix_missing_locations(tree), "<guard>", "eval"), reader.names, text, plan, inputs)
        try:
            guard.holds([plan.symbols[symbol].example for symbol in guard.symbols])
        except Exception:
            return None
        return guard

    def holds(self, values: Sequence[int]) -> bool:
        by_symbol = dict(zip(self.symbols, values, strict=True))
        names = {
            name: by_symbol[axis.symbol] if isinstance(axis, SymbolAxis) else axis for name, axis in self._names.items()
        }
        try:
            return bool(eval(self._code, _NAMESPACE, names))
        except (ZeroDivisionError, OverflowError):
            return False

    def failing_at_every_size(self, most: int) -> list[int] | None:
        """The sizes of its only symbol at which the guard fails, of all sizes. None if there are more than `most`."""
        (symbol,) = (self._plan.symbols[number] for number in self.symbols)
        sizes = range(symbol.min, symbol.max + 1, symbol.multiple_of)
        return None if len(sizes) > most else [size for size in sizes if not self.holds([size])]

    def failing(self) -> list[tuple[int, ...]]:
        """Sizes at which the guard fails, smallest first. They are a sample if there are too many sizes."""
        sizes_per_symbol = max(2, int(_TRIED ** (1 / len(self.symbols))))
        ranges = [_sample(self._plan.symbols[symbol], sizes_per_symbol) for symbol in self.symbols]
        return sorted(values for values in itertools.product(*ranges) if not self.holds(values))

    def hint(self) -> str | None:
        """The manifest text with which the guard always holds, if it is about one dim only; otherwise None."""
        if len(self.symbols) != 1:
            return None
        (number,) = self.symbols
        symbol = self._plan.symbols[number]
        sizes = _sample(symbol, _TRIED)
        holding = [size for size in sizes if self.holds([size])]
        if not holding:
            return None
        step = math.gcd(*holding)
        places = axes_of_symbol(self._plan, self._inputs, number)
        if step > symbol.multiple_of and all(size in set(holding) for size in sizes if size % step == 0):
            return f"write dims: {{{symbol.name}: {{at: [{', '.join(places)}], multiple_of: {step}}}}}"
        if all(size in set(holding) for size in sizes if holding[0] <= size <= holding[-1]):
            return f"change the profiles so that {places[0]} is at least {holding[0]} and at most {holding[-1]}"
        return None


class _SizeReader(ast.NodeTransformer):
    """Replaces ``L['x'].size()[2]`` by a name, and records its axis."""

    def __init__(self, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]) -> None:
        self._arguments = arguments
        self._plan = plan
        self._inputs = inputs
        self.names: dict[str, int | SymbolAxis] = {}
        self.places: dict[str, str] = {}

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "size"):
            return self.generic_visit(node)
        number = self._lookup(call.func.value)
        axis = ast.literal_eval(node.slice)
        name = f"_size_{number}_{axis}_"
        self.names[name] = self._plan.shapes[number][axis]
        self.places[name] = f"{self._inputs[number].name}.{axis}"
        return ast.Name(name, ast.Load())

    def _lookup(self, node: ast.expr) -> int:
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
            raise ValueError("no input")
        return value


def axis_of(
    code: str, arguments: Mapping[str, Any], plan: ShapePlan, inputs: Sequence[Input]
) -> int | SymbolAxis | None:
    """The axis that an expression of torch names (``L['x'].size()[2]``); None if it is not an axis of an input."""
    reader = _SizeReader(arguments, plan, inputs)
    with contextlib.suppress(SyntaxError, LookupError, ValueError, TypeError):
        reader.visit(ast.parse(code, mode="eval").body)
    return next(iter(reader.names.values()), None)


def arguments_by_number(signature: inspect.Signature, inputs: Sequence[Input]) -> dict[str, Any]:
    """The arguments of forward, with the number of the manifest's input instead of each tensor."""
    args = [number for number, entry in enumerate(inputs) if not entry.keyword]
    kwargs = {entry.name: number for number, entry in enumerate(inputs) if entry.keyword}
    bound = dict(signature.bind(*args, **kwargs).arguments)
    return kwargs | bound


def _sample(symbol: Any, count: int) -> list[int]:
    """Sizes of a symbol: all, or the two ends and an even spread between them."""
    sizes = range(symbol.min, symbol.max + 1, symbol.multiple_of)
    if len(sizes) <= count:
        return list(sizes)
    third = max(1, count // 3)
    spread = sizes[:: max(1, len(sizes) // third)]
    return sorted({*sizes[:third], *sizes[-third:], *spread})


_NAMESPACE = {**SYMPY_INTERP, "math": math, "inf": math.inf, "torch": torch}
