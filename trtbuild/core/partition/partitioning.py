"""Divides a graph into partitions. Each node has a label, which the caller chooses.

Rules
1. All nodes of a partition have the same label.
2. The graph of partitions has no cycle, so the partitions can run one after the other.
3. Partitions are maximal: merging any two partitions with the same label would break rule 2. At first, each node is a
   group. Groups with the same label are merged if this keeps rule 2: first those with an edge between them, in graph
   order, and then all other pairs. So a graph with one label becomes one partition, even if it is not connected.
4. The result is deterministic: the same graph and labels give the same partitions, in an order in which they can run.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence


def divide(producers: Sequence[Sequence[int]], labels: Sequence[Hashable]) -> list[list[int]]:
    """Return the partitions of the nodes 0..n-1, each a sorted list of nodes, in an order in which they can run.

    `producers[i]` are the nodes that node i needs. If several partitions could be next in the order, the partition with the
    smallest node is next. Raises ValueError if a node needs a node that is not before it.
    """
    graph = _Groups()
    for node, needs in enumerate(producers):
        if any(not 0 <= need < node for need in needs):
            raise ValueError(f"node {node} needs {sorted(needs)}: nodes must be in topological order")
        graph.add(node, {graph.group_of(need) for need in needs})
        for need in needs:
            producer = graph.group_of(need)
            consumer = graph.group_of(node)
            if labels[need] == labels[node] and producer != consumer and graph.can_merge(producer, consumer):
                graph.merge(producer, consumer)
    _merge_without_edges(graph, labels)
    return graph.groups_in_order()


def _merge_without_edges(graph: _Groups, labels: Sequence[Hashable]) -> None:
    """Merge groups with the same label until no two of them can be merged (rule 3)."""
    by_label: dict[Hashable, list[int]] = {}
    for group in sorted(graph.members):
        by_label.setdefault(labels[group], []).append(group)
    merged = True
    while merged:
        merged = False
        for groups in by_label.values():
            position = 0
            while position < len(groups):
                keep = groups[position]
                for candidate in groups[position + 1 :]:
                    if graph.can_merge(keep, candidate):
                        graph.merge(keep, candidate)
                        groups.remove(candidate)
                        merged = True
                position += 1


class _Groups:
    """Groups of nodes and the edges between them. A group is identified by its smallest node."""

    def __init__(self) -> None:
        #: Group → its nodes, sorted.
        self.members: dict[int, list[int]] = {}
        self._group_of_node: list[int] = []
        #: Group → the groups that need it.
        self._consumers: dict[int, set[int]] = {}
        #: Group → the groups that it needs.
        self._producers: dict[int, set[int]] = {}
        #: Group → an integer as a bit set. Bit g is set if a path of at least one edge leads from the group to group g.
        self._reachable: dict[int, int] = {}

    def group_of(self, node: int) -> int:
        return self._group_of_node[node]

    def add(self, node: int, producers: set[int]) -> None:
        """Add the next node as a group. `producers` are the groups that it needs."""
        self._group_of_node.append(node)
        self.members[node] = [node]
        self._consumers[node] = set()
        self._producers[node] = set(producers)
        self._reachable[node] = 0
        for group in producers:
            self._consumers[group].add(node)
        bit, sources = 1 << node, sum(1 << group for group in producers)
        # The producers, and all groups that reach a producer, now also reach the new group.
        for group in self.members:
            if group != node and (sources >> group & 1 or self._reachable[group] & sources):
                self._reachable[group] |= bit

    def can_merge(self, first: int, second: int) -> bool:
        """Whether no path between the two groups leads through a third group."""
        return not (self._path_around(first, second) or self._path_around(second, first))

    def _path_around(self, start: int, end: int) -> bool:
        """Whether a path from `start` to `end` leads through a third group."""
        if not self._reachable[start] >> end & 1:
            return False
        return any(step != end and self._reachable[step] >> end & 1 for step in self._consumers[start])

    def merge(self, first: int, second: int) -> None:
        """Merge two groups for which `can_merge` is true."""
        keep, merged = min(first, second), max(first, second)
        bits = 1 << keep | 1 << merged
        # `keep` reaches all groups that either group reached. A group that reached either group now reaches `keep`, too.
        reach = (self._reachable[keep] | self._reachable.pop(merged)) & ~bits
        self._reachable[keep] = reach
        for group in self.members:
            if group not in (keep, merged) and self._reachable[group] & bits:
                self._reachable[group] = (self._reachable[group] | reach | 1 << keep) & ~(1 << merged)
        # the edges of `merged` become edges of `keep`
        for table, opposite in ((self._consumers, self._producers), (self._producers, self._consumers)):
            neighbours = (table[keep] | table.pop(merged)) - {keep, merged}
            table[keep] = neighbours
            for group in neighbours:
                opposite[group].discard(merged)
                opposite[group].add(keep)
        self.members[keep] = sorted(self.members[keep] + self.members.pop(merged))
        for node in self.members[keep]:
            self._group_of_node[node] = keep

    def groups_in_order(self) -> list[list[int]]:
        """The nodes of each group. Each group follows the groups that it needs."""
        waiting = {group: len(producers) for group, producers in self._producers.items()}
        ready = [group for group, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            group = heapq.heappop(ready)
            order.append(self.members[group])
            for consumer in self._consumers[group]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    heapq.heappush(ready, consumer)
        if len(order) != len(self.members):
            raise AssertionError("the partitions have a cycle")
        return order
