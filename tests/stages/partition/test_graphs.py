"""The partitions together compute the results of the whole graph, for many kinds of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

X, Y = torch.linspace(-2, 3, 24).reshape(4, 6), torch.linspace(3, -1, 24).reshape(4, 6)


def diamond(x: torch.Tensor) -> Any:
    top = x.relu()
    left, right = top.sigmoid().cumsum(1), top.tanh()
    return left * right + top


def nested_diamonds(x: torch.Tensor) -> Any:
    for _ in range(3):
        x = x.sigmoid().cumsum(0) - x.tanh().exp().cumsum(1)
    return x


def several_outputs(x: torch.Tensor, y: torch.Tensor) -> Any:
    first = x.relu()
    second = first.cumsum(1)
    third = second * y
    return first, second, third, first + third


def repeated_output(x: torch.Tensor) -> Any:
    y = x.relu()
    return y, y, x.cumsum(0), y


def inputs_as_outputs(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x, x.cumsum(0).relu(), y, x


def unused_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.relu().cumsum(0)


def tuples(x: torch.Tensor) -> Any:
    first, second, third = x.relu().split(2, dim=1)
    values, places = x.topk(3, dim=1)
    best, place = x.max(dim=1)
    left, right = x.chunk(2, dim=0)
    ordered, order = torch.sort(x, dim=1, stable=True)
    return (
        first.cumsum(0) + third,
        second,
        values.cumsum(1),
        places,
        best * 2,
        place,
        left - right,
        ordered.cumsum(0),
        order,
    )


def one_result_of_a_tuple(x: torch.Tensor) -> Any:
    return x.max(dim=1).indices.cumsum(0), x.unbind(0)[2].relu()


def views_in_place(x: torch.Tensor) -> Any:
    y = x.relu()
    y[:, 1:3] += 10
    z = y.view(6, 4)
    z[0].mul_(2)
    y.cumsum_(0)
    z.add_(1)
    return y, z


def constants(x: torch.Tensor) -> Any:
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    return (x * scale).cumsum(1) + scale, torch.tensor([7, 8])


def without_inputs(x: torch.Tensor) -> Any:
    return x.relu() * torch.arange(6.0).cumsum(0).tanh(), torch.ones(2, 3)


FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    function.__name__: (function, count)
    for function, count in [
        (diamond, 1),
        (nested_diamonds, 1),
        (several_outputs, 2),
        (repeated_output, 1),
        (inputs_as_outputs, 2),
        (unused_input, 2),
        (tuples, 1),
        (one_result_of_a_tuple, 1),
        (views_in_place, 1),
        (constants, 1),
        (without_inputs, 1),
    ]
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_partitions_together_equal_the_whole_graph(name: str, lowered: Any) -> None:
    function, count = FUNCTIONS[name]
    model = lowered(function, *(X, Y)[:count])
    eager = function(*(value.clone() for value in (X, Y)[:count]))
    eager = list(eager) if isinstance(eager, tuple) else [eager]
    for listed in ([], ["aten.cumsum"], ["aten.relu", "aten.tanh"], ["aten.mul", "aten.max", "aten.sort"]):
        partitioned = (
            model.partition(torch_executed_ops=tuple(listed))
            .assert_valid_document(with_storage=not listed)
            .assert_same_results_as_unpartitioned()
        )
        for result, expected in zip(partitioned.run(model.example), eager, strict=True):
            torch.testing.assert_close(result, expected)


def test_only_the_needed_result_of_a_tuple_is_passed_on(lowered: Any) -> None:
    model = lowered(lambda x: x.topk(3, dim=1).values.cumsum(1), X)
    partitioned = model.partition(torch_executed_ops=("aten.cumsum",)).assert_same_results_as_unpartitioned()
    assert partitioned.kinds == ["tensorrt", "torch"]
    assert len(partitioned["p0"].outputs) == 1
    assert [source for source, _ in partitioned["p1"].inputs] == ["p0:0"]


def test_both_results_of_a_tuple_come_from_one_partition(lowered: Any) -> None:
    model = lowered(lambda x: [part.cumsum(0) for part in torch.topk(x, 2, dim=1)], X)
    partitioned = model.partition(torch_executed_ops=("aten.cumsum",)).assert_same_results_as_unpartitioned()
    assert sorted(source for source, _ in partitioned["p1"].inputs) == ["p0:0", "p0:1"]
    assert sorted(output.dtype for output in partitioned["p0"].outputs) == ["float32", "int64"]


def test_an_input_that_is_an_output_needs_no_partition(lowered: Any) -> None:
    partitioned = lowered(lambda x: (x, x), X).partition().assert_same_results_as_unpartitioned()
    assert partitioned.partitions == ()
    assert partitioned.document.outputs == ("input:0", "input:0")


class Weights(nn.Module):
    """A module with a weight that two partitions use, a weight that is also an output, and an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36).reshape(6, 6))
        self.gain = nn.Parameter(torch.linspace(0, 1, 6))
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.full((6,), 0.5))

    def forward(self, x: torch.Tensor) -> Any:
        y = F.linear(x, self.weight).cumsum(1)
        return F.linear(y - self.mean, self.weight) * self.gain, self.gain


def test_one_weight_is_in_two_partitions_and_another_is_also_an_output(lowered: Any) -> None:
    model = lowered(Weights(), X)
    partitioned = (
        model.partition(torch_executed_ops=("aten.cumsum",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned()
    )
    assert partitioned.kinds == ["tensorrt", "torch", "tensorrt"]
    first, second = partitioned["p0"].weights, partitioned["p2"].weights
    assert len(first) == 1 and first[0] in second and len(second) == 3
    assert partitioned.document.outputs == ("p2:0", f"weight:{second[-1]}")


def test_a_weight_slot_is_never_a_partition_input(lowered: Any) -> None:
    partitioned = lowered(Weights(), X).partition(torch_executed_ops=("aten.cumsum", "aten.linear"))
    assert not any(source.startswith("weight:") for entry in partitioned.partitions for source, _ in entry.inputs)


def test_a_constant_in_two_partitions_is_in_both_programs(lowered: Any) -> None:
    def scaled(x: torch.Tensor) -> Any:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        return (x * scale).cumsum(1) + scale

    partitioned = (
        lowered(scaled, X).partition(torch_executed_ops=("aten.cumsum",)).assert_same_results_as_unpartitioned()
    )
    programs = [partitioned.result.programs[partitioned[name].graph] for name in ("p0", "p2")]
    (first,), (second,) = (list(program.constants.values()) for program in programs)
    assert torch.equal(first, second)


def test_independent_branches_are_one_partition(lowered: Any) -> None:
    partitioned = lowered(lambda x, y: (x.relu().tanh(), y.exp()), X, Y).partition()
    assert partitioned.names == ["model"]


def test_the_partitions_of_crossing_chains_are_in_a_valid_order(lowered: Any) -> None:
    """Both chains of operators alternate between TensorRT and Torch. One begins with TensorRT, and the other with Torch."""

    def crossing(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.relu(), y.cumsum(0)
        c, d = a.cumsum(1), b.relu()
        return c.relu() + d, d.cumsum(1) * c

    partitioned = (
        lowered(crossing, X, Y)
        .partition(torch_executed_ops=("aten.cumsum",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned()
    )
    assert set(partitioned.kinds) == {"tensorrt", "torch"}


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(
            x.sum() > 0, lambda v: self.linear(v).relu() + v.shape[0], lambda v: v.tanh() - 1, (x.cumsum(0),)
        )
        return y.relu()


def test_a_nested_graph_is_not_split(lowered: Any) -> None:
    model = lowered(Branch(), X, dims=[{0: Dim("batch", min=1, max=9)}])
    for listed in ((), ("higher_order.cond",), ("aten.cumsum",), ("aten.relu", "aten.sum")):
        partitioned = model.partition(torch_executed_ops=listed).assert_valid_document()
        partitioned.assert_same_results_as_unpartitioned([X], [-X], [X[:1]], [-X[:3]])
        assert sum("higher_order.cond" in partitioned.operators(name) for name in partitioned.names) == 1
    assert "higher_order.cond" in partitioned.model.operators


def test_the_calls_of_a_partition_are_positions_in_the_lowered_graph(lowered: Any) -> None:
    model = lowered(several_outputs, X, Y, dims=[{0: Dim("batch", min=2, max=9)}] * 2)
    partitioned = model.partition(torch_executed_ops=("aten.cumsum",))
    seen: list[int] = []
    for entry in partitioned.partitions:
        program = partitioned.result.programs[entry.graph]
        nodes = [node for node in program.graph.nodes if node.op == "call_function"]
        for node, number in zip(nodes, entry.calls, strict=True):
            if number >= 0:
                assert model.operators[number].split(".")[1] == str(node.target).split(".")[1]
                seen.append(number)
    assert seen and len(seen) == len(set(seen))
