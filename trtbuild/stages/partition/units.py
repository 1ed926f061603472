"""The units that a graph is divided into. A unit is one operator call and the nodes that must stay with it.

Rules
1. A call and the `getitem` nodes that read its results are one unit.
2. Size nodes (calls whose value is an int, float or bool, such as `sym_size`) are not units, because each partition
   computes its sizes from its own tensors (`sizes`). A unit that uses a size needs the units that the size is computed
   from.
3. Placeholders (weights, constants, inputs) are not units.
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
    """One operator call."""

    call_number: int  # the index of the call among all call_function nodes of the graph
    nodes: tuple[torch.fx.Node, ...]  # the call and its getitems
    needs: tuple[int, ...]  # the positions, in the list of units, of the units that must run before

    @property
    def call(self) -> torch.fx.Node:
        return self.nodes[0]


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node is a call whose value is a number."""
    return node.op == "call_function" and isinstance(
        node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
    )


def find_units(program: Program) -> list[Unit]:
    """Return the units in graph order."""
    units: list[Unit] = []
    unit_positions: dict[torch.fx.Node, int] = {}
    units_behind_sizes: dict[torch.fx.Node, frozenset[int]] = {}
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    for call_number, node in enumerate(calls):
        needed_units: set[int] = set()
        for needed in node.all_input_nodes:
            if needed in unit_positions:
                needed_units.add(unit_positions[needed])
            needed_units |= units_behind_sizes.get(needed, frozenset())
        if is_size(node):
            units_behind_sizes[node] = frozenset(needed_units)
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, torch.fx.Node) and source in unit_positions:
            position = unit_positions[source]
            unit = units[position]
            units[position] = Unit(unit.call_number, (*unit.nodes, node), unit.needs)
            unit_positions[node] = position
            continue
        unit_positions[node] = len(units)
        units.append(Unit(call_number, (node,), tuple(sorted(needed_units))))
    return units


def call_numbers_by_node(units: Sequence[Unit]) -> dict[torch.fx.Node, int]:
    """Map each node of each unit to the call number of the unit."""
    return {node: unit.call_number for unit in units for node in unit.nodes}


def affected_calls(node: torch.fx.Node, call_numbers: Mapping[torch.fx.Node, int]) -> set[int]:
    """Return the call numbers of the units that use the size `node`, or the call number of the unit that contains `node`.

    `call_numbers` is a result of `call_numbers_by_node`."""
    numbers: set[int] = set()
    seen = {node}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in call_numbers:
            numbers.add(call_numbers[current])
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
