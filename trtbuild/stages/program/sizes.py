"""The sizes of a program's values at one point, in two ways: what they are said to be, and what the operators make of them.

Rules
1. A *point* gives every symbol of the program a number. What a value is said to be is its ``val``, evaluated there.
2. What the operators make is found by running them, one by one, on tensors that have a type and no data, from the sizes
   that the inputs are said to have. Symbols take no part in it, so nothing can replace one.
3. What cannot be run without data (a nested graph, a size that a value decides) is taken to be what it is said to be. A
   size that depends on data is not compared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from trtbuild.core.model.shapes import spread
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols
from trtbuild.stages.program.text import target_name

#: Symbol → its number at a point.
Point = Mapping[sympy.Symbol, int]

#: A tensor's dtype and sizes; None for a size that depends on data.
Type = tuple[torch.dtype, tuple[int | None, ...]]

#: Kernels give other strides where there is no data; a view takes some alone.
_WITHOUT_STRIDES = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}
#: Where tensors have types and no data.
_NOWHERE = torch.device("meta")
_UNKNOWN = object()
_DATA = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
#: A size of which no input tells the symbol.
_NOBODYS = -1


@dataclass(frozen=True)
class Difference:
    """The first value that is not what it is said to be. `node` is its place in the program, `text` says what it is."""

    node: torch.fx.Node
    text: str
    point: Point

    def __str__(self) -> str:
        return f"{target_name(self.node.target)} {self.text}"


def points_of(program: Program, more: Sequence[Sequence[int]] = ()) -> list[Point]:
    """The points at which a program is looked at: `more` (numbers by symbol), the ends of all ranges, and two between.

    They follow from the program, but for `more`: what one build has compared, another need not.
    """
    symbols = Symbols(program)
    found = [*(tuple(numbers) for numbers in more), *spread(symbols.ranges)]
    return [dict(zip(symbols.order, numbers, strict=True)) for numbers in dict.fromkeys(found)]


def difference(program: Program, points: Sequence[Point], *, outputs_only: bool = False) -> Difference | None:
    """Where a program does not have the sizes that it says; None where it has. With `outputs_only` values inside may
    differ, and the first of those is named when an output does."""
    for point in points:
        first: Difference | None = None
        at = At(point)
        returned = set(program.output_nodes)
        for node, said, made in at.walk(program):
            if said != made and first is None:
                text = made if isinstance(made, str) else f"gives {shown(made)} where the program has {shown(said)}"
                first = Difference(node, text, point)
                if not outputs_only:
                    return first
            if first is not None and node in returned and said != made:
                return first
    return None


def said_at(value: Any, point: Point) -> list[Type]:
    """The types of the tensors that a node's ``val`` consists of, at a point."""
    return At(point).said(value)


def shown(types: Sequence[Type]) -> str:
    """``float32[2, 8]``."""
    texts = [
        f"{str(dtype).removeprefix('torch.')}[{', '.join('?' if s is None else str(s) for s in sizes)}]"
        for dtype, sizes in types
    ]
    return ", ".join(texts) or "no tensor"


class At:
    """One point of a program. What it has found out of sizes and calls it remembers."""

    def __init__(self, point: Point) -> None:
        self._numbers = {symbol: sympy.Integer(number) for symbol, number in point.items()}
        self._sizes: dict[Any, int | None] = {}
        #: Call → result. Layers repeat, and running an operator takes up to a millisecond.
        self._results: dict[Any, Any] = {}

    def size(self, size: Any) -> int | None:
        """What a size is here; None where it depends on data."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._sizes:
            found = sympy.sympify(expression).xreplace(self._numbers)
            of_data = any(symbol_is_type(symbol, _DATA) for symbol in found.free_symbols)
            self._sizes[expression] = int(found) if found.is_Integer else None if of_data else _NOBODYS
        return self._sizes[expression]

    def said(self, value: Any) -> list[Type]:
        """The types of the tensors that a node's ``val`` consists of."""
        leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return [(leaf.dtype, tuple(map(self.size, leaf.shape))) for leaf in leaves]

    def walk(self, program: Program) -> Iterator[tuple[torch.fx.Node, list[Type], list[Type] | str]]:
        """Each call with what it is said to give and what it gives here; a text where it fails.

        Of a call with several results those that are taken out are told: kernels differ in the others.
        """
        values: dict[torch.fx.Node, Any] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._made_of(node.meta.get("val"))
            elif node.op == "call_function":
                with torch.no_grad():
                    values[node] = self._run(node, values)
                said = self.said(node.meta.get("val"))
                if isinstance(values[node], _Failed):
                    yield node, said, values[node].text
                    return
                if values[node] is not _UNKNOWN and not isinstance(values[node], list | tuple):
                    yield node, said, _forget(said, self.said(values[node]))

    def _run(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
        needed = [values.get(source, _UNKNOWN) for source in node.all_input_nodes]
        if _looks_at_data(node.target) or any(value is _UNKNOWN for value in needed):
            return self._made_of(node.meta.get("val"))
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        call = (node.target, _described(args), _described(kwargs))
        if call not in self._results:
            self._results[call] = self._called(node, args, kwargs)
        return self._results[call]

    def _called(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        if "device" in kwargs or _makes(node.target):
            kwargs = {**kwargs, "device": _NOWHERE}
        try:
            return _WITHOUT_STRIDES.get(node.target, node.target)(*args, **kwargs)
        except NotImplementedError:
            return self._made_of(node.meta.get("val"))
        except ZeroDivisionError:  # a factor such as n / (n - 1), which eager computes too; sizes do not depend on it
            return self._made_of(node.meta.get("val"))
        except Exception as error:
            if getattr(node.target, "namespace", "") == "prims":  # which take numbers as tensors here, and not there
                return self._made_of(node.meta.get("val"))
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return _Failed(f"fails: {said}")

    def _made_of(self, value: Any) -> Any:
        """A value of the types that `value` is said to have here; unknown where a size depends on data."""
        if isinstance(value, list | tuple):
            parts = [self._made_of(part) for part in value]
            return _UNKNOWN if any(part is _UNKNOWN for part in parts) else type(value)(parts)
        if isinstance(value, torch.SymInt):
            size = self.size(value)
            return _UNKNOWN if size is None else size
        if not isinstance(value, torch.Tensor):
            return _UNKNOWN if isinstance(value, torch.SymFloat | torch.SymBool) else value
        sizes = [self.size(size) for size in value.shape]
        strides = [self.size(step) for step in value.stride()] if value.layout is torch.strided else []
        if None in sizes or None in strides or _NOBODYS in sizes:
            return _UNKNOWN
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=_NOWHERE)


def _described(value: Any) -> Any:
    """What an argument is to the types of a result, as a key."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if isinstance(value, dict):
        return tuple((name, _described(part)) for name, part in value.items())
    return type(value), value


@functools.cache
def _looks_at_data(target: Any) -> bool:
    """Whether an operator needs data to run: a nested graph, or one that reads its result or its sizes from values."""
    tags = getattr(target, "tags", ())
    return (
        isinstance(target, torch._ops.HigherOrderOperator)
        or torch.Tag.data_dependent_output in tags
        or torch.Tag.dynamic_output_shape in tags
    )


@functools.cache
def _makes(target: Any) -> bool:
    """Whether an operator makes a tensor of nothing but numbers: where it lies is an argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = target._schema.arguments
    return any(entry.name == "device" for entry in arguments) and not any(
        "Tensor" in str(entry.type) for entry in arguments
    )


@dataclass(frozen=True)
class _Failed:
    text: str


def _forget(said: Sequence[Type], made: Sequence[Type]) -> list[Type]:
    """`made`, with the sizes left out that `said` does not know."""
    if len(said) != len(made):
        return list(made)
    return [
        (dtype, tuple(None if a is None or b is None else b for a, b in zip(sizes, own, strict=True)))
        if len(sizes) == len(own)
        else (dtype, own)
        for (_, sizes), (dtype, own) in zip(said, made, strict=True)
    ]
