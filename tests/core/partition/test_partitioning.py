"""Dividing graphs into partitions, with a slow check of each rule of `partitioning`."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.core.partition.partitioning import divide

Graph = list[list[int]]


def acyclic(producers: Graph, group_of: Sequence[int]) -> bool:
    """Return whether the groups can run one after the other. `group_of` has the group of each node."""
    edges: dict[int, set[int]] = {}
    for node, needs in enumerate(producers):
        for need in needs:
            if group_of[need] != group_of[node]:
                edges.setdefault(group_of[need], set()).add(group_of[node])
    state: dict[int, str] = {}

    def visit(current: int) -> bool:
        state[current] = "open"
        for following in edges.get(current, ()):
            if state.get(following) == "open" or (following not in state and not visit(following)):
                return False
        state[current] = "done"
        return True

    return all(visit(current) for current in list(edges) if current not in state)


def checked_partitions(producers: Graph, labels: Sequence[Hashable]) -> list[list[int]]:
    """Return the partitions of a graph, after checking them against the rules."""
    parts = divide(producers, labels)
    group_of = [0] * len(producers)
    for number, part in enumerate(parts):
        assert part == sorted(part)
        assert len({labels[node] for node in part}) == 1, "rule 1"
        for node in part:
            group_of[node] = number
    assert sorted(node for part in parts for node in part) == list(range(len(producers)))
    assert acyclic(producers, group_of), "rule 2"
    assert all(group_of[need] <= group_of[node] for node, needs in enumerate(producers) for need in needs), (
        "rule 4: the order"
    )
    for first in range(len(parts)):
        for second in range(first + 1, len(parts)):
            if labels[parts[first][0]] == labels[parts[second][0]]:
                merged = [first if number == second else number for number in group_of]
                assert not acyclic(producers, merged), f"rule 3: {parts[first]} and {parts[second]} could be one"
    return parts


@st.composite
def graphs(draw: Any) -> tuple[Graph, list[str]]:
    size = draw(st.integers(1, 14))
    producers = [
        draw(st.lists(st.integers(0, node - 1), max_size=3, unique=True)) if node else [] for node in range(size)
    ]
    return producers, draw(st.lists(st.sampled_from("abT"), min_size=size, max_size=size))


@given(graphs())
def test_any_small_graph_is_divided_by_the_rules(graph: tuple[Graph, list[str]]) -> None:
    producers, labels = graph
    assert checked_partitions(producers, labels) == divide(producers, labels)


def test_a_thousand_random_graphs_are_divided_by_the_rules() -> None:
    for seed in range(1_000):
        rng = random.Random(seed)
        size = rng.randint(1, 14)
        producers = [sorted(rng.sample(range(node), min(node, rng.randint(0, 3)))) for node in range(size)]
        checked_partitions(producers, [rng.choice("abT") for _ in range(size)])


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_a_node_s_producers_and_the_names_of_labels_do_not_matter(
    graph: tuple[Graph, list[str]], rng: random.Random
) -> None:
    producers, labels = graph
    shuffled = [rng.sample(needs, len(needs)) for needs in producers]
    # The hash of an object follows from its address, so a set of objects has another order in every run.
    label_objects = {label: object() for label in labels}
    assert divide(shuffled, [label_objects[label] for label in labels]) == divide(
        [sorted(needs) for needs in producers], labels
    )


def test_an_empty_graph_has_no_partitions() -> None:
    assert divide([], []) == []


def test_a_chain_is_divided_where_the_label_changes() -> None:
    assert checked_partitions([[], [0], [1], [2], [3]], "aabba") == [[0, 1], [2, 3], [4]]


def test_a_diamond_with_one_arm_of_another_label_is_three_partitions() -> None:
    """0 → 1 (T) → 3 and 0 → 2 → 3: node 3 cannot join 0, because 1 runs between them."""
    assert checked_partitions([[], [0], [0], [1, 2]], "aTaa") == [[0, 2], [1], [3]]


def test_a_whole_diamond_is_one_partition() -> None:
    assert checked_partitions([[], [0], [0], [1, 2]], "aaaa") == [[0, 1, 2, 3]]


def test_two_paths_with_opposite_labels_do_not_become_a_cycle() -> None:
    """a0 → b1 and b2 → a3: if 0 and 3 were one partition, and 1 and 2 another, each would wait for the other."""
    assert checked_partitions([[], [0], [], [2]], "abba") == [[2], [0, 3], [1]]


def test_an_unconnected_graph_of_one_label_is_one_partition() -> None:
    assert checked_partitions([[], [], [], [0]], "aaaa") == [[0, 1, 2, 3]]


def test_unconnected_nodes_of_one_label_are_joined() -> None:
    assert checked_partitions([[], [0], [], [2]], "abab") == [[0, 2], [1, 3]]


def test_of_the_partitions_that_can_run_the_one_with_the_smallest_node_is_next() -> None:
    assert checked_partitions([[], [], []], "abc") == [[0], [1], [2]]
    assert checked_partitions([[], [0], []], "abc") == [[0], [1], [2]]


@pytest.mark.parametrize("producers", [[[0]], [[1], []], [[-1]], [[], [2], []]])
def test_refuses_nodes_that_are_not_in_order(producers: Graph) -> None:
    with pytest.raises(ValueError, match="topological order"):
        divide(producers, "a" * len(producers))


def deep_graph(size: int, seed: int) -> Graph:
    """Return a chain with short skip connections, like a deep network."""
    rng = random.Random(seed)
    return [sorted({node - 1, rng.randint(max(0, node - 40), node - 1)}) if node else [] for node in range(size)]


def test_three_thousand_nodes_in_layers_are_divided() -> None:
    parts = divide(deep_graph(3_000, 1), [node // 250 for node in range(3_000)])
    assert parts == [list(range(first, first + 250)) for first in range(0, 3_000, 250)]


def test_three_thousand_nodes_with_scattered_torch_nodes_are_divided() -> None:
    rng = random.Random(2)
    labels = ["T" if rng.random() < 0.02 else "a" for _ in range(3_000)]
    parts = divide(deep_graph(3_000, 2), labels)
    assert sorted(node for part in parts for node in part) == list(range(3_000))
    assert all(len({labels[node] for node in part}) == 1 for part in parts)
