"""Find the tensors from which a piece of a graph computes each size that it uses. Partitions exchange tensors, not numbers.

Rules
1. A root is a node that computes a number from a tensor (`sym_size`, `item`). Arithmetic on numbers is copied into the
   piece.
2. The number of a root comes from the first possible source in this list. (Outside tensors are inputs of the piece.)
   * a dimension of an outside tensor whose size is the root's expression,
   * arithmetic on the dimensions of outside tensors,
   * the tensor that the root reads, if the piece computes this tensor,
   * inputs of the model from whose sizes the number can be computed, and which become inputs of the piece,
   * the tensor that the root reads, which becomes an input of the piece.
3. With this order, equal layers compute equal sizes in the same way, even if another part of the model uses a size first.
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
    """A map from size expressions to dimensions of tensors: of outside tensors, or of the model's inputs. If several
    dimensions have the same expression, the first one counts."""

    def __init__(self, outside: Iterable[torch.fx.Node], symbols: Symbols) -> None:
        self._symbols = symbols
        #: `expression_key` of a size → the first dimension with this size.
        self._dimensions: dict[str, Dimension] = {}
        for node in outside:
            self.add(node)

    def add(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(size, int):
                self._dimensions.setdefault(expression_key(self._symbols.size_expression(size)), (node, axis))

    def dimension(self, expression: Expression) -> Dimension | None:
        """The first dimension whose size is `expression`; None if no dimension has this size."""
        return None if isinstance(expression, int) else self._dimensions.get(expression_key(expression))

    def solve(self, root: torch.fx.Node) -> Expression | None:
        """Return the root's expression if it can be computed from these dimensions; otherwise None."""
        return self._expression(root) if self.find_tensors(root, self) == [] else None

    def find_tensors(self, root: torch.fx.Node, other: Sizes) -> list[torch.fx.Node] | None:
        """Return the tensors of `other` that are needed, in addition to these dimensions, to compute the root. Returns None
        if it cannot be computed."""
        expression = self._expression(root)
        return None if expression is None else self._find_tensors(expression, other)

    def _expression(self, root: torch.fx.Node) -> Expression | None:
        value = root.meta["val"]
        return self._symbols.size_expression(value) if isinstance(value, torch.SymInt | int) else None

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
    """The roots of the numbers that `node` reads, in order, except those in `seen`. Adds the visited nodes to `seen`."""
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
    """Whether a node with a number as its value computes this number from a tensor."""
    return any(not is_size(needed) for needed in size.all_input_nodes)


def expression_key(expression: Expression) -> str:
    """A hashable form of an expression."""
    return json.dumps(expression)
