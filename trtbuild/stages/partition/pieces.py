"""What each partition takes and gives.

Rules
1. A piece takes the weights and lifted constants that it uses, then tensors from outside, each by first use, and last
   the tensors that it needs for their sizes alone (carriers).
2. It gives the tensors that others, or the model's user, take; in graph order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtbuild.stages.partition.sizes import Sizes, roots
from trtbuild.stages.partition.units import Unit, is_size
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.symbols import Symbols


@dataclass(frozen=True)
class Piece:
    """One partition: its units and their nodes in graph order, and what it takes and gives as nodes of the whole graph."""

    units: tuple[Unit, ...]
    nodes: tuple[torch.fx.Node, ...]
    weights: tuple[torch.fx.Node, ...]
    constants: tuple[torch.fx.Node, ...]
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]

    @property
    def identity(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """What tells pieces of one graph apart: all else follows from it."""
        return tuple(unit.index for unit in self.units), tuple(node.name for node in self.outputs)


def pieces_of(program: Program, groups: Sequence[Sequence[Unit]], symbols: Symbols) -> list[Piece]:
    """The pieces of the groups of units, in their order."""
    weights, constants = set(program.weight_nodes), program.constants.keys()
    order = {node: position for position, node in enumerate(program.graph.nodes)}
    pieces = []
    for group in groups:
        nodes = tuple(sorted((node for unit in group for node in unit.nodes), key=order.__getitem__))
        taken = _outside(nodes)
        used_weights = tuple(node for node in taken if node in weights)
        used_constants = tuple(node for node in taken if node.op == "placeholder" and node.name in constants)
        inputs = [node for node in taken if node not in used_weights and node not in used_constants]
        inputs += _carriers(nodes, inputs, symbols)
        pieces.append(Piece(tuple(group), nodes, used_weights, used_constants, tuple(inputs), ()))
    wanted = set(program.output_nodes).union(*(piece.inputs for piece in pieces))
    return [
        Piece(
            piece.units,
            piece.nodes,
            piece.weights,
            piece.constants,
            piece.inputs,
            tuple(node for node in piece.nodes if node in wanted),
        )
        for piece in pieces
    ]


def _outside(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The tensors that `nodes` take from outside, by first use."""
    inside = set(nodes)
    taken = dict.fromkeys(needed for node in nodes for needed in node.all_input_nodes)
    return [node for node in taken if node not in inside and node.op != "get_attr" and not is_size(node)]


def _carriers(nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], symbols: Symbols) -> list[torch.fx.Node]:
    """Outside tensors that are needed for their sizes alone."""
    inside = set(nodes)
    sizes = Sizes(inputs, symbols)
    found: list[torch.fx.Node] = []
    seen: set[torch.fx.Node] = set()
    for node in nodes:
        for root in roots(node, seen):
            if sizes.solved(root) is not None:
                continue
            for tensor in root.all_input_nodes:
                if tensor not in inside and tensor not in inputs and tensor not in found and not is_size(tensor):
                    found.append(tensor)
                    sizes.add(tensor)
    return found
