"""Insert nodes that compute a size expression from the sizes of the model's inputs.

A size that depends on data is read from the first tensor that has this size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from trtbuild.core.values.expressions import Expression
from trtbuild.stages.program.symbols import Symbols

#: A size in a graph: a node, or a number.
Size = Any

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "pow": operator.pow,
}


class SizeNodes:
    """Inserts nodes at the insertion point of `graph`. `inputs` are the inputs of the model in this graph."""

    def __init__(self, graph: torch.fx.Graph, inputs: Iterable[torch.fx.Node], symbols: Symbols) -> None:
        self._graph = graph
        self._symbols = symbols
        #: Number of a symbol → the node that computes it from the sizes of the inputs.
        self._values: dict[Any, torch.fx.Node] = {}
        #: Number of a size that depends on data → the first tensor that has it, and the axis.
        self._data_sizes: dict[Any, tuple[torch.fx.Node, int]] = {}
        for node in inputs:
            self._compute_symbols(node)

    def _compute_symbols(self, node: torch.fx.Node) -> None:
        """Compute the symbols of an input. An axis with the size ``4*s`` gives the symbol ``s``."""
        for axis, size in enumerate(node.meta["val"].shape):
            expression = self._symbols.size_expression(size)
            unit, number = _as_multiple(expression)
            if number is None or number in self._values:
                continue
            result = self._call(torch.ops.aten.sym_size.int, (node, axis), size)
            if unit != 1:
                result = self._call(operator.floordiv, (result, unit), size // unit)
            self._values[number] = result

    def add_tensor(self, node: torch.fx.Node) -> None:
        """Add a tensor of the graph. A size that depends on data is read from the first added tensor that has it."""
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            expression = self._symbols.size_expression(size)
            if not isinstance(expression, int) and expression[0] == "data":
                self._data_sizes.setdefault(expression[1], (node, axis))

    def size(self, size: Any) -> Size | None:
        """A number, or a node that computes `size` (an int or a SymInt); None if `size` cannot be computed yet."""
        return self._size(self._symbols.size_expression(size))

    def _size(self, expression: Expression) -> Size | None:
        if isinstance(expression, int):
            return expression
        name, *operands = expression
        if name == "sym":
            return self._values.get(operands[0])
        if name == "data":
            source = self._data_sizes.get(operands[0])
            if source is None:
                return None
            tensor, axis = source
            return self._call(torch.ops.aten.sym_size.int, source, tensor.meta["val"].shape[axis])
        values = [self._size(operand) for operand in operands if not isinstance(operand, str)]
        if any(value is None for value in values):
            return None
        if name == "ceildiv":
            negative = self._apply(operator.mul, values[0], -1)
            return self._apply(operator.mul, self._apply(operator.floordiv, negative, values[1]), -1)
        result, *rest = values
        for value in rest:
            result = self._apply(_OPERATORS[str(name)], result, value)
        return result

    def _apply(self, function: Callable[[Any, Any], Any], first: Size, second: Size) -> Size:
        numbers = [size.meta["val"] if isinstance(size, torch.fx.Node) else size for size in (first, second)]
        value = function(*numbers)
        return self._call(function, (first, second), value) if isinstance(value, torch.SymInt) else value

    def _call(self, target: Any, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
        node = self._graph.call_function(target, args)
        node.meta = {"val": value}
        return node


def _as_multiple(expression: Any) -> tuple[int, int | None]:
    """The factor and the number of the symbol of ``factor * symbol``. The number is None for any other expression."""
    if isinstance(expression, int):
        return 1, None
    name, *operands = expression
    if name == "sym":
        return 1, operands[0]
    if name == "mul" and len(operands) == 2 and isinstance(operands[0], int):
        factor, rest = operands
        return factor, rest[1] if rest[:1] == ["sym"] else None
    return 1, None
