"""Building a program of its own for each partition.

Rules
1. A partition's program is functional: the weights it uses (by first use), lifted constants, then the tensors it takes
   from outside (by first use); its outputs are the tensors that others use, in graph order.
2. No number crosses a partition's border. A size is computed inside, from the partition's own tensors: a dimension of
   an outside tensor that is the very expression, else arithmetic on dimensions that are bare symbols, else a dimension
   of a tensor made inside, else the tensor whose size was asked for is handed over too (a carrier).
3. So equal layers have equal programs wherever in the model their sizes came from.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from trtbuild.core.expressions import Expression
from trtbuild.stages.partition.units import Unit, is_size
from trtbuild.stages.program.functional import Program, assemble
from trtbuild.stages.program.symbols import Symbols


@dataclass
class Piece:
    """One partition: its units, what it takes (nodes of the whole graph), what it gives, and its program."""

    units: list[Unit]
    weights: list[torch.fx.Node] = field(default_factory=list)
    constants: list[torch.fx.Node] = field(default_factory=list)
    inputs: list[torch.fx.Node] = field(default_factory=list)
    outputs: list[torch.fx.Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return sorted(node for unit in self.units for node in unit.nodes)


def pieces_of(program: Program, groups: Sequence[Sequence[Unit]], symbols: Symbols) -> list[Piece]:
    """What each group takes and gives, in the order of `groups`."""
    weights, constants = set(program.weight_nodes), set(program.constants)
    pieces = [Piece(list(group)) for group in groups]
    for piece in pieces:
        inside = set(piece.nodes)
        for node in piece.nodes:
            for needed in node.all_input_nodes:
                if needed in weights:
                    _append(piece.weights, needed)
                elif needed.op == "placeholder" and needed.name in constants:
                    _append(piece.constants, needed)
                elif needed not in inside and not is_size(needed) and needed.op != "get_attr":
                    _append(piece.inputs, needed)
        for carrier in _Sizes(piece, symbols).carriers():
            _append(piece.inputs, carrier)
    _outputs(program, pieces)
    return pieces


def _append(nodes: list[torch.fx.Node], node: torch.fx.Node) -> None:
    if node not in nodes:
        nodes.append(node)


def _outputs(program: Program, pieces: Sequence[Piece]) -> None:
    wanted = set(program.output_nodes)
    for piece in pieces:
        wanted.update(piece.inputs)
    for piece in pieces:
        piece.outputs = [node for node in piece.nodes if node in wanted]


class _Sizes:
    """How a piece computes the sizes that its nodes ask for."""

    def __init__(self, piece: Piece, symbols: Symbols) -> None:
        self._piece = piece
        self._symbols = symbols
        self._inside = set(piece.nodes)

    def carriers(self) -> list[torch.fx.Node]:
        """Outside tensors that are needed for their sizes alone."""
        found: list[torch.fx.Node] = []
        seen: set[torch.fx.Node] = set()

        def visit(node: torch.fx.Node) -> None:
            if node in seen:
                return
            seen.add(node)
            if not _is_leaf(node):
                for needed in node.all_input_nodes:
                    if is_size(needed):
                        visit(needed)
                return
            tensor, axis = _leaf(node)
            if self.dimension(self._symbols.expression(tensor.meta["val"].shape[axis])) is None and (
                self.solution(node) is None and tensor not in self._inside
            ):
                _append(found, tensor)

        for node in self._piece.nodes:
            for needed in node.all_input_nodes:
                if is_size(needed):
                    visit(needed)
        return found

    def dimension(self, expression: Expression) -> tuple[torch.fx.Node, int] | None:
        """An outside tensor and axis that is `expression` long."""
        for node in self._piece.inputs:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if not isinstance(size, int) and self._symbols.expression(size) == expression:
                        return node, axis
        return None

    def solution(self, leaf: torch.fx.Node) -> Expression | None:
        """The leaf's expression, if every symbol in it is a dimension of an outside tensor."""
        tensor, axis = _leaf(leaf)
        expression = self._symbols.expression(tensor.meta["val"].shape[axis])

        def known(part: Expression) -> bool:
            if isinstance(part, int):
                return True
            if part[0] == "sym":
                return self.dimension(part) is not None
            return part[0] in _ARITHMETIC and all(known(operand) for operand in part[1:])

        return expression if known(expression) else None


_ARITHMETIC = {"add": operator.add, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod}


def _is_leaf(node: torch.fx.Node) -> bool:
    return node.target in (torch.ops.aten.sym_size.int,)


def _leaf(node: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    tensor, axis = node.args[0], node.args[1]
    if not isinstance(tensor, torch.fx.Node) or not isinstance(axis, int):
        raise AssertionError("sym_size takes a tensor and an axis")
    return tensor, axis


@dataclass(frozen=True)
class Built:
    """A piece's own program, and for each of its call nodes the call node of the whole graph that it copies (None for
    a size that is computed anew)."""

    program: Program
    origins: tuple[torch.fx.Node | None, ...]


def build(program: Program, piece: Piece, symbols: Symbols) -> Built:
    """The piece's own program."""
    return _Builder(program, piece, symbols).build()


class _Builder:
    def __init__(self, program: Program, piece: Piece, symbols: Symbols) -> None:
        self._program = program
        self._piece = piece
        self._sizes = _Sizes(piece, symbols)
        self._symbols = symbols
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._attributes: dict[str, Any] = {}

    def build(self) -> Built:
        piece = self._piece
        specs = [self._placeholder(node, f"w{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.weights)]
        specs += [self._placeholder(node, f"c{k}", InputKind.CONSTANT_TENSOR) for k, node in enumerate(piece.constants)]
        specs += [self._placeholder(node, f"i{k}", InputKind.USER_INPUT) for k, node in enumerate(piece.inputs)]
        for node in piece.nodes:
            self._copy(node)
        results = [self._copies[node] for node in piece.outputs]
        self._graph.output(tuple(results))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        module = torch.fx.GraphModule(self._attributes, self._graph)
        values = self._program.constants
        constants = {f"c{k}": values[node.name] for k, node in enumerate(piece.constants)}
        exported = assemble(module, specs, outputs, self._program.exported.range_constraints, constants)
        originals = {copy: node for node, copy in self._copies.items()}
        calls = [node for node in self._graph.nodes if node.op == "call_function"]
        return Built(Program(exported, len(piece.weights)), tuple(originals.get(node) for node in calls))

    def _placeholder(self, node: torch.fx.Node, name: str, kind: InputKind) -> InputSpec:
        copy = self._graph.placeholder(name)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        target = name if kind is InputKind.CONSTANT_TENSOR else None
        return InputSpec(kind=kind, arg=TensorArgument(copy.name), target=target)

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node in self._copies:
            return self._copies[node]
        if node.op == "get_attr":
            return self._copy_attribute(node)
        if is_size(node) and _is_leaf(node):
            copy = self._copy_leaf(node)
        else:
            for needed in node.all_input_nodes:
                if needed not in self._copies:
                    self._copy(needed)
            copy = self._graph.node_copy(node, lambda needed: self._copies[needed])
            copy.meta = dict(node.meta)
        self._copies[node] = copy
        return copy

    def _copy_attribute(self, node: torch.fx.Node) -> torch.fx.Node:
        value: Any = self._program.exported.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = f"graph_{len(self._attributes)}"
        self._attributes[name] = value
        copy = self._graph.get_attr(name)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        return copy

    def _copy_leaf(self, leaf: torch.fx.Node) -> torch.fx.Node:
        tensor, axis = _leaf(leaf)
        expression = self._symbols.expression(tensor.meta["val"].shape[axis])
        place = self._sizes.dimension(expression)
        if place is not None:
            return self._size_of(*place)
        solution = self._sizes.solution(leaf)
        if solution is not None:
            number = self._compute(solution)
            if not isinstance(number, torch.fx.Node):
                raise AssertionError("a symbolic size is no constant")
            return number
        if tensor not in self._copies:
            raise AssertionError(f"size of {tensor} is asked for before it is made")
        return self._size_of(tensor, axis)

    def _size_of(self, tensor: torch.fx.Node, axis: int) -> torch.fx.Node:
        node = self._graph.call_function(torch.ops.aten.sym_size.int, (self._copies[tensor], axis))
        node.meta = {"val": tensor.meta["val"].shape[axis]}
        return node

    def _compute(self, expression: Expression) -> torch.fx.Node | int:
        if isinstance(expression, int):
            return expression
        if expression[0] == "sym":
            place = self._sizes.dimension(expression)
            if place is None:
                raise AssertionError("the size has no carrier")
            return self._size_of(*place)
        operands = [self._compute(operand) for operand in expression[1:]]
        function = _ARITHMETIC[str(expression[0])]
        result = operands[0]
        for other in operands[1:]:
            value = function(_number(result), _number(other))
            result = self._graph.call_function(function, (result, other))
            result.meta = {"val": value}
        return result


def _number(operand: torch.fx.Node | int) -> Any:
    return operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand
