"""Make the pieces of a graph: find the nodes, inputs and outputs of each partition.

Rules
1. The inputs of a piece are, in this order: its weights, its lifted constants, the tensors from outside (which the piece
   does not compute), and the tensors that it needs only for their sizes. Each kind is in the order of first use.
2. The outputs of a piece are the tensors that other pieces or the model's caller read, in graph order.
3. A piece is made from a group of units (operator calls with their `getitem` nodes). It contains only the nodes that its
   outputs depend on. A tensor that is used only for its size is not computed if the size has another source. So a group
   may have no piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import torch

from trtbuild.stages.partition.sizes import Sizes, size_roots
from trtbuild.stages.partition.units import Unit, is_size
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class Piece:
    """One partition. All nodes are those of the whole graph; `units` and `nodes` are in graph order. `inputs` has the
    inputs of rule 1 without the weights and constants."""

    units: tuple[Unit, ...]
    nodes: tuple[torch.fx.Node, ...]
    weights: tuple[torch.fx.Node, ...]
    constants: tuple[torch.fx.Node, ...]
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]

    @property
    def identity(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The call numbers of the units, and the names of the outputs: a key that is unique in the graph."""
        return tuple(unit.call_number for unit in self.units), tuple(node.name for node in self.outputs)


def make_pieces(program: Program, groups: Sequence[Sequence[Unit]], symbols: Symbols) -> list[Piece]:
    """Return the pieces of `groups`. They can run in the order of the groups."""
    maker = _PieceMaker(program, symbols)
    needed_nodes = set(program.output_nodes)
    pieces = []
    for group in reversed(groups):  # the readers of a group come after it
        piece = maker.make(group, needed_nodes)
        if piece.outputs:
            needed_nodes.update(piece.inputs)
            pieces.append(piece)
    return pieces[::-1]


class _PieceMaker:
    def __init__(self, program: Program, symbols: Symbols) -> None:
        self._symbols = symbols
        self._model_sizes = Sizes(program.input_nodes, symbols)
        self._weights = set(program.weight_nodes)
        self._constants = program.constants.keys()
        self._order = {node: position for position, node in enumerate(program.graph.nodes)}

    def make(self, group: Sequence[Unit], needed_nodes: Set[torch.fx.Node]) -> Piece:
        """Return the part of a group that computes the group's nodes in `needed_nodes`. It has no outputs if there are no
        such nodes."""
        group_nodes = {node for unit in group for node in unit.nodes}
        outputs = group_nodes & needed_nodes
        computed = _with_dependencies(outputs, group_nodes)
        # A tensor that is needed for its size may be in this group. Then the piece computes it, and may need more inputs.
        while True:
            nodes = sorted(computed, key=self._order.__getitem__)
            outside_nodes = _tensors_from_outside(nodes, computed)
            inputs = [node for node in outside_nodes if not self._is_weight(node) and not self._is_constant(node)]
            size_only_inputs = self._size_only_inputs(nodes, inputs, computed)
            size_inputs_in_group = group_nodes.intersection(size_only_inputs)
            if not size_inputs_in_group:
                break
            computed |= _with_dependencies(size_inputs_in_group, group_nodes)
        return Piece(
            units=tuple(unit for unit in group if unit.call in computed),
            nodes=tuple(nodes),
            weights=tuple(filter(self._is_weight, outside_nodes)),
            constants=tuple(filter(self._is_constant, outside_nodes)),
            inputs=(*inputs, *size_only_inputs),
            outputs=tuple(sorted(outputs, key=self._order.__getitem__)),
        )

    def _is_weight(self, node: torch.fx.Node) -> bool:
        return node in self._weights

    def _is_constant(self, node: torch.fx.Node) -> bool:
        return node.op == "placeholder" and node.name in self._constants

    def _size_only_inputs(
        self, nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], computed: set[torch.fx.Node]
    ) -> list[torch.fx.Node]:
        """Return the tensors that a piece needs only for their sizes, in the order in which the sizes are used.

        A root is a node that computes a number from a tensor. Its number may have several sources (`sizes`, rule 2)."""
        sizes = Sizes(inputs, self._symbols)
        size_only_inputs: list[torch.fx.Node] = []
        seen: set[torch.fx.Node] = set()
        for node in nodes:
            for root in size_roots(node, seen):
                root_tensors = [tensor for tensor in root.all_input_nodes if not is_size(tensor)]
                if computed.issuperset(root_tensors):
                    continue  # the piece computes these tensors
                needed = sizes.find_tensors(root, self._model_sizes)  # inputs of the model; empty if `inputs` suffice
                if needed is None:
                    needed = root_tensors
                for tensor in needed:
                    if tensor not in computed and tensor not in inputs and tensor not in size_only_inputs:
                        size_only_inputs.append(tensor)
                        sizes.add(tensor)
        return size_only_inputs


def _with_dependencies(nodes: Iterable[torch.fx.Node], within: Set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return `nodes` and all nodes of `within` that they depend on."""
    result = set(nodes)
    waiting = list(result)
    while waiting:
        for needed in waiting.pop().all_input_nodes:
            if needed in within and needed not in result:
                result.add(needed)
                waiting.append(needed)
    return result


def _tensors_from_outside(nodes: Sequence[torch.fx.Node], inside: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The tensors that `nodes` read from outside, by first use."""
    inputs = dict.fromkeys(needed for node in nodes for needed in node.all_input_nodes)
    return [node for node in inputs if node not in inside and node.op != "get_attr" and not is_size(node)]
