"""Find the inputs and outputs of each partition.

Rules
1. The inputs of a piece are the weights and lifted constants that it uses, then the tensors from outside, each by first
   use. Last come the tensors that it needs only for their sizes (carriers).
2. Its outputs are the tensors that other pieces or the model's caller read, in graph order.
3. It has the nodes that its outputs depend on. A tensor that is used only for its size is not computed if the size is
   known in another way. So a group may have no piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

import torch

from trtbuild.stages.partition.sizes import Sizes, roots
from trtbuild.stages.partition.units import Unit, is_size
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class Piece:
    """One partition: its units and their nodes in graph order, and its inputs and outputs as nodes of the whole
    graph."""

    units: tuple[Unit, ...]
    nodes: tuple[torch.fx.Node, ...]
    weights: tuple[torch.fx.Node, ...]
    constants: tuple[torch.fx.Node, ...]
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]

    @property
    def identity(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """A key that differs for different pieces of one graph: everything else follows from it."""
        return tuple(unit.index for unit in self.units), tuple(node.name for node in self.outputs)


def pieces_of(program: Program, groups: Sequence[Sequence[Unit]], symbols: Symbols) -> list[Piece]:
    """Return the pieces of the groups of units, in the same order: one in which they can run."""
    maker = _PieceMaker(program, symbols)
    wanted = set(program.output_nodes)
    pieces = []
    for group in reversed(groups):  # the readers of a group come after it
        piece = maker.piece(group, wanted)
        if piece.outputs:
            wanted.update(piece.inputs)
            pieces.append(piece)
    return pieces[::-1]


class _PieceMaker:
    def __init__(self, program: Program, symbols: Symbols) -> None:
        self._symbols = symbols
        self._model = Sizes(program.input_nodes, symbols)
        self._weights = set(program.weight_nodes)
        self._constants = program.constants.keys()
        self._order = {node: position for position, node in enumerate(program.graph.nodes)}

    def piece(self, group: Sequence[Unit], wanted: Set[torch.fx.Node]) -> Piece:
        """Return the part of a group that computes the nodes of `wanted`; it has no outputs if none of them is in the
        group."""
        everything = {node for unit in group for node in unit.nodes}
        outputs = everything & wanted
        live = _closure(outputs, everything)
        while True:
            nodes = sorted(live, key=self._order.__getitem__)
            taken = _outside(nodes, live)
            inputs = [node for node in taken if not self._is_weight(node) and not self._is_constant(node)]
            carriers = self._carriers(nodes, inputs, live)
            inside = everything.intersection(carriers)
            if not inside:
                break
            live |= _closure(inside, everything)
        return Piece(
            units=tuple(unit for unit in group if unit.call in live),
            nodes=tuple(nodes),
            weights=tuple(filter(self._is_weight, taken)),
            constants=tuple(filter(self._is_constant, taken)),
            inputs=(*inputs, *carriers),
            outputs=tuple(sorted(outputs, key=self._order.__getitem__)),
        )

    def _is_weight(self, node: torch.fx.Node) -> bool:
        return node in self._weights

    def _is_constant(self, node: torch.fx.Node) -> bool:
        return node.op == "placeholder" and node.name in self._constants

    def _carriers(
        self, nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], live: set[torch.fx.Node]
    ) -> list[torch.fx.Node]:
        """Further tensors that are needed only for their sizes, in the order in which the sizes are used."""
        sizes = Sizes(inputs, self._symbols)
        found: list[torch.fx.Node] = []
        seen: set[torch.fx.Node] = set()
        for node in nodes:
            for root in roots(node, seen):
                own = [tensor for tensor in root.all_input_nodes if not is_size(tensor)]
                if live.issuperset(own):
                    continue
                missing = sizes.missing(root, self._model)
                for tensor in own if missing is None else missing:
                    if tensor not in live and tensor not in inputs and tensor not in found:
                        found.append(tensor)
                        sizes.add(tensor)
        return found


def _closure(nodes: Iterable[torch.fx.Node], within: Set[torch.fx.Node]) -> set[torch.fx.Node]:
    """`nodes` and all nodes of `within` that they depend on by way of tensors."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        for needed in waiting.pop().all_input_nodes:
            if needed in within and needed not in found:
                found.add(needed)
                waiting.append(needed)
    return found


def _outside(nodes: Sequence[torch.fx.Node], inside: Set[torch.fx.Node]) -> list[torch.fx.Node]:
    """The tensors that `nodes` read from outside, by first use."""
    taken = dict.fromkeys(needed for node in nodes for needed in node.all_input_nodes)
    return [node for node in taken if node not in inside and node.op != "get_attr" and not is_size(node)]
