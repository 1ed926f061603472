"""Partitioning a graph of 3,000 operators takes seconds of CPU time. Each limit is about five times the usual time."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from tests.stages.partition.test_random_graphs import CASES, GraphMaker, aten

LAYERS = 500


@pytest.fixture(scope="module")
def large(seed_program: Any, model_of: Any) -> Any:
    """A model of 500 layers with six operators each, among them a reshape. Layer n also reads the result of layer n - 2."""
    maker = GraphMaker(seed_program, 0)
    before, x = maker.inputs
    value = x.meta["val"]

    def call(target: Any, *args: Any) -> torch.fx.Node:
        node = maker.graph.call_function(target, args)
        node.meta = {"val": value, "nn_module_stack": dict(maker.stack)}  # all tensors have the same shape
        return node

    for number in range(LAYERS):
        maker.stack = {"L": ("", "M"), f"L.{number}": (f"layers.{number}", "X")}
        y = call(aten.linear.default, x, *maker.weight_nodes[:2])
        y = call(aten.reshape.default, y, [maker.size_nodes[0][0], maker.size_nodes[1][0], 4])
        y = call(aten.cumsum.default, call(aten.relu.default, y), 1)
        before, x = x, call(aten.add.Tensor, call(aten.tanh.default, y), before)
    maker.pool.append(x)
    maker.rng = random.Random(1)
    return model_of(maker.program(), maker.weights, CASES[0])


@pytest.mark.parametrize(
    ("settings", "count", "limit_s"),
    [
        ({}, 1, 15),
        ({"granularity": ("layers.*",)}, LAYERS, 30),
        ({"torch_executed_ops": ("aten.cumsum",)}, 2 * LAYERS + 1, 45),
    ],
    ids=["whole", "by layer", "in a thousand pieces"],
)
def test_three_thousand_operators_are_partitioned_in_time(
    settings: Any, count: int, limit_s: float, large: Any
) -> None:
    started = time.process_time()
    partitioned = large.partition(**settings)
    duration_s = time.process_time() - started
    assert len(large.operators) > 6 * LAYERS
    assert len(partitioned.partitions) == count
    assert duration_s < limit_s
