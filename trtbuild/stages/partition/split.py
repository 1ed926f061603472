"""Build the program of each partition.

A partition's program is functional. Its inputs are its weights, its lifted constants, and then the tensors from outside.
Its outputs are the tensors that other partitions or the model's caller read. Names are positions, and sizes are
recomputed (`sizes`). So equal layers have equal programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.core.values.expressions import Expression
from trtbuild.stages.partition.pieces import Piece
from trtbuild.stages.partition.sizes import ARITHMETIC, Sizes, is_root, key_of
from trtbuild.stages.partition.units import is_size
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.symbols import Symbols

#: The copy of a node in a partition's graph: a node, or a number if its value is fixed.
Copy: TypeAlias = "torch.fx.Node | int"


@dataclass(frozen=True)
class Built:
    """A piece's program, and for each of its call nodes the call node of the whole graph that it copies (None for a
    size that is recomputed)."""

    program: Program
    origins: tuple[torch.fx.Node | None, ...]


def build(program: Program, piece: Piece, symbols: Symbols) -> Built:
    """Build the piece's program."""
    return _Builder(program, piece, symbols).build()


class _Builder:
    def __init__(self, program: Program, piece: Piece, symbols: Symbols) -> None:
        self._program = program
        self._piece = piece
        self._sizes = Sizes(piece.inputs, symbols)
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, Copy] = {}
        self._computed: dict[str, Copy] = {}
        self._attributes: dict[str, Any] = {}

    def build(self) -> Built:
        piece = self._piece
        specs = [self._placeholder(node, f"w{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.weights)]
        specs += [self._placeholder(node, f"c{k}", InputKind.CONSTANT_TENSOR) for k, node in enumerate(piece.constants)]
        specs += [self._placeholder(node, f"i{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.inputs)]
        for node in piece.nodes:
            self._copy(node)
        results = [self._node(node) for node in piece.outputs]
        self._graph.output(tuple(results))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        module = torch.fx.GraphModule(self._attributes, self._graph)
        values = self._program.constants
        constants = {f"c{k}": values[node.name] for k, node in enumerate(piece.constants)}
        exported = assemble(module, specs, outputs, self._program.exported.range_constraints, constants)
        originals = {copy: node for node, copy in self._copies.items() if isinstance(copy, torch.fx.Node)}
        calls = [node for node in self._graph.nodes if node.op == "call_function"]
        return Built(Program(exported, len(piece.weights)), tuple(originals.get(node) for node in calls))

    def _placeholder(self, node: torch.fx.Node, name: str, kind: InputKind) -> InputSpec:
        copy = self._graph.placeholder(name)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        target = name if kind is InputKind.CONSTANT_TENSOR else None
        return InputSpec(kind=kind, arg=TensorArgument(copy.name), target=target)

    def _node(self, node: torch.fx.Node) -> torch.fx.Node:
        copy = self._copies[node]
        if not isinstance(copy, torch.fx.Node):
            raise AssertionError(f"{node} is a tensor, not a number")
        return copy

    def _copy(self, node: torch.fx.Node) -> None:
        """Copy a node, and before it the sizes and nested graphs that it needs. The tensors that it reads have been
        copied before."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            solved = self._sizes.solved(current) if is_size(current) and is_root(current) else None
            missing = [] if solved is not None else [n for n in current.all_input_nodes if n not in self._copies]
            if missing:
                if any(not is_size(needed) and needed.op != "get_attr" for needed in missing):
                    raise AssertionError(f"{current} reads a tensor that its partition does not have: {missing}")
                waiting += reversed(missing)
                continue
            waiting.pop()
            if current not in self._copies:
                self._copies[current] = self._compute(solved) if solved is not None else self._copy_of(current)

    def _copy_of(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.op == "get_attr":
            copy = self._graph.get_attr(self._attribute(str(node.target)))
        else:
            copy = self._graph.node_copy(node, lambda needed: self._copies[needed])
        copy.meta = dict(node.meta)
        return copy

    def _attribute(self, path: str) -> str:
        """The name in the new module for a nested graph of the whole program."""
        value: Any = self._program.exported.graph_module
        for part in path.split("."):
            value = getattr(value, part)
        name = f"graph_{len(self._attributes)}"
        self._attributes[name] = value
        return name

    def _compute(self, expression: Expression) -> Copy:
        """Compute a size from the dimensions of tensors from outside, once for each expression."""
        if isinstance(expression, int):
            return expression
        key = key_of(expression)
        if key not in self._computed:
            self._computed[key] = self._arithmetic(expression)
        return self._computed[key]

    def _arithmetic(self, expression: Sequence[str | int | Expression]) -> Copy:
        place = self._sizes.place(expression)
        if place is not None:
            tensor, axis = place
            node = self._graph.call_function(torch.ops.aten.sym_size.int, (self._node(tensor), axis))
            node.meta = {"val": tensor.meta["val"].shape[axis]}
            return node
        name, *operands = expression
        function = ARITHMETIC[str(name)]
        result, *rest = [self._compute(part) for part in operands if not isinstance(part, str)]
        for operand in rest:
            node = self._graph.call_function(function, (result, operand))
            node.meta = {"val": function(_number(result), _number(operand))}
            result = node
        return result


def _number(operand: Copy) -> Any:
    return operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand
