"""Build the program of each partition.

A partition's program is functional, like that of the model: weights and constants are its first inputs. Placeholders are
named by their position, and sizes are computed again from the inputs (`sizes`). So equal layers have equal programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.core.values.expressions import Expression
from trtbuild.stages.partition.pieces import Piece
from trtbuild.stages.partition.sizes import ARITHMETIC_OPERATORS, Sizes, expression_key, is_size_root
from trtbuild.stages.partition.units import is_size
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.symbols import Symbols

#: The copy of a node: a node of the partition's graph, or a number if the node computes a fixed size.
Copy: TypeAlias = "torch.fx.Node | int"


@dataclass(frozen=True)
class PieceProgram:
    """The program of a piece (one partition)."""

    program: Program
    #: For each call of the program: the node of the whole graph that it copies, or whose size it computes. None for an
    #: intermediate result of a size.
    origins: tuple[torch.fx.Node | None, ...]


def build_program(program: Program, piece: Piece, symbols: Symbols) -> PieceProgram:
    """Build the program of `piece`, which is a piece of `program`."""
    return _Builder(program, piece, symbols).build()


class _Builder:
    def __init__(self, program: Program, piece: Piece, symbols: Symbols) -> None:
        self._program = program
        self._piece = piece
        self._sizes = Sizes(piece.inputs, symbols)
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, Copy] = {}
        #: `expression_key` of a size → the node that computes it, or the number.
        self._computed_sizes: dict[str, Copy] = {}
        self._attributes: dict[str, Any] = {}

    def build(self) -> PieceProgram:
        piece = self._piece
        specs = [self._add_placeholder(node, f"w{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.weights)]
        specs += [
            self._add_placeholder(node, f"c{k}", InputKind.CONSTANT_TENSOR) for k, node in enumerate(piece.constants)
        ]
        specs += [self._add_placeholder(node, f"i{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.inputs)]
        for node in piece.nodes:
            self._copy_with_needed(node)
        results = [self._copied_tensor(node) for node in piece.outputs]
        self._graph.output(tuple(results))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        module = torch.fx.GraphModule(self._attributes, self._graph)
        values = self._program.constants
        constants = {f"c{k}": values[node.name] for k, node in enumerate(piece.constants)}
        exported = assemble(module, specs, outputs, self._program.exported.range_constraints, constants)
        originals = {copy: node for node, copy in self._copies.items() if isinstance(copy, torch.fx.Node)}
        calls = [node for node in self._graph.nodes if node.op == "call_function"]
        return PieceProgram(Program(exported, len(piece.weights)), tuple(originals.get(node) for node in calls))

    def _add_placeholder(self, node: torch.fx.Node, name: str, kind: InputKind) -> InputSpec:
        copy = self._graph.placeholder(name)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        target = name if kind is InputKind.CONSTANT_TENSOR else None
        return InputSpec(kind=kind, arg=TensorArgument(copy.name), target=target)

    def _copied_tensor(self, node: torch.fx.Node) -> torch.fx.Node:
        copy = self._copies[node]
        if not isinstance(copy, torch.fx.Node):
            raise AssertionError(f"{node} is a tensor, not a number")
        return copy

    def _copy_with_needed(self, node: torch.fx.Node) -> None:
        """Copy a node, after the sizes and nested graphs that it needs. The tensors that it needs have been copied."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            solution = self._sizes.solve(current) if is_size(current) and is_size_root(current) else None
            needed_nodes = current.all_input_nodes if solution is None else []
            uncopied = [needed for needed in needed_nodes if needed not in self._copies]
            if uncopied:
                if any(not is_size(needed) and needed.op != "get_attr" for needed in uncopied):
                    raise AssertionError(f"{current} reads a tensor that its partition does not have: {uncopied}")
                waiting += reversed(uncopied)
                continue
            waiting.pop()
            if current not in self._copies:
                self._copies[current] = (
                    self._compute_once(solution) if solution is not None else self._copy_node(current)
                )

    def _copy_node(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.op == "get_attr":
            copy = self._graph.get_attr(self._add_nested_graph(str(node.target)))
        else:
            copy = self._graph.node_copy(node, lambda needed: self._copies[needed])
        copy.meta = dict(node.meta)
        return copy

    def _add_nested_graph(self, path: str) -> str:
        """Add a nested graph of the whole program to the new module. Returns the graph's new name."""
        value: Any = self._program.exported.graph_module
        for attribute in path.split("."):
            value = getattr(value, attribute)
        name = f"graph_{len(self._attributes)}"
        self._attributes[name] = value
        return name

    def _compute_once(self, expression: Expression) -> Copy:
        """Compute a size from the dimensions of inputs, once for each expression."""
        if isinstance(expression, int):
            return expression
        key = expression_key(expression)
        if key not in self._computed_sizes:
            self._computed_sizes[key] = self._compute_expression(expression)
        return self._computed_sizes[key]

    def _compute_expression(self, expression: Sequence[str | int | Expression]) -> Copy:
        dimension = self._sizes.dimension(expression)
        if dimension is not None:
            tensor, axis = dimension
            node = self._graph.call_function(torch.ops.aten.sym_size.int, (self._copied_tensor(tensor), axis))
            node.meta = {"val": tensor.meta["val"].shape[axis]}
            return node
        name, *operands = expression
        function = ARITHMETIC_OPERATORS[str(name)]
        result, *rest = [self._compute_once(part) for part in operands if not isinstance(part, str)]
        for operand in rest:
            node = self._graph.call_function(function, (result, operand))
            node.meta = {"val": function(_number(result), _number(operand))}
            result = node
        return result


def _number(operand: Copy) -> Any:
    return operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand
