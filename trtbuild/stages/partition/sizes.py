"""Find a source for each size in a piece of a graph: partitions exchange tensors only, never numbers.

Rules
1. The nodes that compute a number from a tensor (`sym_size`, `item`) are roots. Arithmetic on numbers is copied.
2. The value of a root comes from the first possible source in this list:
   a dimension of an outside tensor with the same expression; arithmetic on such dimensions; the root's own tensor, if
   the piece computes this tensor; inputs of the model from whose sizes the root can be computed (carriers); the root's
   own tensor as a carrier.
3. So equal layers compute equal sizes in equal ways. It does not matter where the model uses the sizes first.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from trtbuild.core.values.expressions import Expression
from trtbuild.stages.partition.units import is_size
from trtbuild.stages.program.symbols import Symbols

Place = tuple[torch.fx.Node, int]

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}


class Sizes:
    """The dimensions of a piece's outside tensors, by their expressions. The first tensor and axis counts."""

    def __init__(self, outside: Iterable[torch.fx.Node], symbols: Symbols) -> None:
        self._symbols = symbols
        self._places: dict[str, Place] = {}
        for node in outside:
            self.add(node)

    def add(self, node: torch.fx.Node) -> None:
        """Add a tensor from outside."""
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(size, int):
                self._places.setdefault(key_of(self._symbols.expression(size)), (node, axis))

    def place(self, expression: Expression) -> Place | None:
        """An axis of an outside tensor whose size is `expression`; None if there is no such axis."""
        return None if isinstance(expression, int) else self._places.get(key_of(expression))

    def solved(self, root: torch.fx.Node) -> Expression | None:
        """The root's expression, if it can be computed from dimensions of outside tensors; otherwise None."""
        return self._expression(root) if self.missing(root, self) == [] else None

    def missing(self, root: torch.fx.Node, extra: Sizes) -> list[torch.fx.Node] | None:
        """Tensors of `extra` from which the root can be computed, together with the dimensions of this object. None if it
        cannot be computed."""
        expression = self._expression(root)
        return None if expression is None else self._missing(expression, extra)

    def _expression(self, root: torch.fx.Node) -> Expression | None:
        value = root.meta["val"]
        return self._symbols.expression(value) if isinstance(value, torch.SymInt | int) else None

    def _missing(self, expression: Expression, extra: Sizes) -> list[torch.fx.Node] | None:
        if isinstance(expression, int) or self.place(expression) is not None:
            return []
        place = extra.place(expression)
        if place is not None:
            return [place[0]]
        name, *operands = expression
        if name not in ARITHMETIC:
            return None
        tensors: list[torch.fx.Node] = []
        for part in operands:
            nodes = None if isinstance(part, str) else self._missing(part, extra)
            if nodes is None:
                return None
            tensors += nodes
        return tensors


def roots(node: torch.fx.Node, seen: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The roots of the numbers that `node` reads, in order of appearance, except those in `seen`."""
    result = []
    waiting = [needed for needed in reversed(node.all_input_nodes) if is_size(needed)]
    while waiting:
        size = waiting.pop()
        if size in seen:
            continue
        seen.add(size)
        if is_root(size):
            result.append(size)
        else:
            waiting += reversed(size.all_input_nodes)
    return result


def is_root(size: torch.fx.Node) -> bool:
    """Whether a size node computes its number from a tensor."""
    return any(not is_size(needed) for needed in size.all_input_nodes)


def key_of(expression: Expression) -> str:
    """A hashable form of an expression."""
    return json.dumps(expression)
