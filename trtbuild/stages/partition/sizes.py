"""Find a source for each size in a piece of a graph, because partitions exchange tensors only, never numbers.

Rules
1. The nodes that compute a number from a tensor (`sym_size`, `item`) are roots. Arithmetic on numbers is copied into the
   piece.
2. A tensor from outside is an input of the piece. The value of a root comes from the first possible source in this list:
   * a dimension whose size is the root's expression, in a tensor from outside,
   * arithmetic on the dimensions of tensors from outside,
   * the tensor that the root reads, if the piece computes this tensor,
   * inputs of the model from whose sizes the root can be computed (they become inputs of the piece: carriers),
   * the tensor that the root reads, as a carrier.
3. With this order, equal layers compute equal sizes in equal ways. It does not matter where the model uses the sizes
   first.
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

#: A tensor and the index of one of its axes.
Dimension = tuple[torch.fx.Node, int]

ARITHMETIC_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}


class Sizes:
    """The dimensions of the tensors that a piece reads from outside, or of the inputs of the model, by expression. If
    several dimensions have the same expression, the first one is used."""

    def __init__(self, outside: Iterable[torch.fx.Node], symbols: Symbols) -> None:
        self._symbols = symbols
        self._dimensions: dict[str, Dimension] = {}
        for node in outside:
            self.add(node)

    def add(self, node: torch.fx.Node) -> None:
        """Add a tensor from outside."""
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(size, int):
                self._dimensions.setdefault(expression_key(self._symbols.expression(size)), (node, axis))

    def dimension(self, expression: Expression) -> Dimension | None:
        """The dimension whose size is `expression`, in an outside tensor; None if no dimension has this size."""
        return None if isinstance(expression, int) else self._dimensions.get(expression_key(expression))

    def solve(self, root: torch.fx.Node) -> Expression | None:
        """Return the root's expression if it can be computed from dimensions of outside tensors; otherwise None."""
        return self._expression(root) if self.find_tensors(root, self) == [] else None

    def find_tensors(self, root: torch.fx.Node, other: Sizes) -> list[torch.fx.Node] | None:
        """Find the tensors of `other` that are needed to compute the root, in addition to the tensors of this object.
        Returns None if the root cannot be computed."""
        expression = self._expression(root)
        return None if expression is None else self._find_tensors(expression, other)

    def _expression(self, root: torch.fx.Node) -> Expression | None:
        value = root.meta["val"]
        return self._symbols.expression(value) if isinstance(value, torch.SymInt | int) else None

    def _find_tensors(self, expression: Expression, other: Sizes) -> list[torch.fx.Node] | None:
        if isinstance(expression, int) or self.dimension(expression) is not None:
            return []
        dimension = other.dimension(expression)
        if dimension is not None:
            return [dimension[0]]
        name, *operands = expression
        if name not in ARITHMETIC_OPERATORS:
            return None
        tensors: list[torch.fx.Node] = []
        for part in operands:
            nodes = None if isinstance(part, str) else self._find_tensors(part, other)
            if nodes is None:
                return None
            tensors += nodes
        return tensors


def size_roots(node: torch.fx.Node, seen: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The roots of the numbers that `node` reads, in order of appearance, except those in `seen`."""
    result = []
    waiting = [needed for needed in reversed(node.all_input_nodes) if is_size(needed)]
    while waiting:
        size = waiting.pop()
        if size in seen:
            continue
        seen.add(size)
        if is_size_root(size):
            result.append(size)
        else:
            waiting += reversed(size.all_input_nodes)
    return result


def is_size_root(size: torch.fx.Node) -> bool:
    """Whether a size node computes its number from a tensor."""
    return any(not is_size(needed) for needed in size.all_input_nodes)


def expression_key(expression: Expression) -> str:
    """A hashable form of an expression."""
    return json.dumps(expression)
