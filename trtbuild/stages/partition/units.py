"""The units that a graph is cut into: one operator call and the nodes that must stay with it.

Rules
1. A call and the `getitem` nodes that read its results are one unit.
2. Size nodes (calls whose value is an int, float or bool, such as `sym_size`) are not units: each partition computes
   its sizes from its own tensors (`sizes`). An edge through size nodes still orders units.
3. Placeholders (weights, constants, inputs) are not units, because nothing computes them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trtbuild.stages.program.functional import Program


@dataclass(frozen=True)
class Unit:
    """One operator call. `nodes` are the call and its getitems, and `index` is its number among all call nodes. `needs`
    are the positions of the units whose results it reads."""

    index: int
    nodes: tuple[torch.fx.Node, ...]
    needs: tuple[int, ...]

    @property
    def call(self) -> torch.fx.Node:
        return self.nodes[0]


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node's value is a number rather than a tensor."""
    return node.op == "call_function" and isinstance(
        node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
    )


def units_of(program: Program) -> list[Unit]:
    """The units in graph order. `needs` are positions in the returned list."""
    units: list[Unit] = []
    owner: dict[torch.fx.Node, int] = {}
    through_sizes: dict[torch.fx.Node, frozenset[int]] = {}
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    for index, node in enumerate(calls):
        before: set[int] = set()
        for needed in node.all_input_nodes:
            if needed in owner:
                before.add(owner[needed])
            before |= through_sizes.get(needed, frozenset())
        if is_size(node):
            through_sizes[node] = frozenset(before)
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, torch.fx.Node) and source in owner:
            position = owner[source]
            unit = units[position]
            units[position] = Unit(unit.index, (*unit.nodes, node), unit.needs)
            owner[node] = position
            continue
        owner[node] = len(units)
        units.append(Unit(index, (node,), tuple(sorted(before))))
    return units


def owners(units: Sequence[Unit]) -> dict[torch.fx.Node, int]:
    """Map each node of a unit to the number of the unit's call."""
    return {node: unit.index for unit in units for node in unit.nodes}


def units_using(node: torch.fx.Node, owner: Mapping[torch.fx.Node, int]) -> set[int]:
    """The call number of the unit that `node` belongs to. For a size, the call numbers of all units that use it."""
    numbers: set[int] = set()
    seen = {node}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in owner:
            numbers.add(owner[current])
        elif is_size(current):
            waiting += current.users.keys() - seen
            seen.update(current.users)
    return numbers


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the (fake) tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
