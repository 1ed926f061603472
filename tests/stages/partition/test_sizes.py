"""Partitions exchange tensors only. A partition computes the sizes that it needs from its input tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

CASES = [(1, 3), (2, 5), (4, 7), (6, 9)]


def rows(batch: int, length: int) -> list[torch.Tensor]:
    """The inputs of a model: one tensor [batch, length, 4]."""
    return [torch.linspace(-2, 2, batch * length * 4).reshape(batch, length, 4)]


DIMS = [{0: Dim("batch", min=1, max=6), 1: Dim("length", min=3, max=9)}]


def reshapes(x: torch.Tensor) -> torch.Tensor:
    batch, length = x.shape[:2]
    y = x.relu().reshape(batch, length * 2, 2).cumsum(1)
    y = y.reshape(batch * length, 4).tanh().cumsum(0)
    return y.reshape(batch, length, 2, 2).transpose(1, 2).reshape(batch, 2 * length, 2)


def number_as_value(x: torch.Tensor) -> torch.Tensor:
    return x.relu().cumsum(0) / x.shape[1] + x.shape[0] * 3 - x.shape[1] // 2


def number_as_float(x: torch.Tensor) -> torch.Tensor:
    return x.relu().cumsum(0) * x.shape[1] ** -0.5 + x.shape[0] / x.shape[1]


def created_inside(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1) + torch.arange(x.shape[1]).cumsum(0)[:, None] + torch.zeros(x.shape[0], 1, 1).cos()


def shorter(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()[:, 1:].cumsum(1)
    return y.reshape(x.shape[0], (x.shape[1] - 1) * 4).tanh().cumsum(0)


def padded(x: torch.Tensor) -> torch.Tensor:
    missing = (4 - x.shape[1] % 4) % 4
    y = F.pad(x.relu(), (0, 0, 0, missing)).cumsum(1)
    return y.tanh().sum(1).cumsum(0) + missing


def condition(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.tensor(x.shape[0] > 3), x.relu().cumsum(1), x.cumsum(0))


FUNCTIONS = [reshapes, number_as_value, number_as_float, created_inside, shorter, padded, condition]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_later_partition_recomputes_sizes(function: Callable[..., Any], lowered: Any) -> None:
    model = lowered(function, *rows(3, 6), dims=DIMS)
    cases = [rows(*case) for case in CASES]
    for listed in (("aten.cumsum",), ("aten.relu", "aten.tanh"), ("aten.reshape", "aten.slice")):
        with_storage = listed == ("aten.cumsum",)
        partitioned = (
            model.partition(torch_executed_ops=listed)
            .assert_valid_document(with_storage=with_storage)
            .assert_same_results_as_unpartitioned(*cases)
        )
    for case in cases:
        torch.testing.assert_close(partitioned.run(case)[0], function(*case))


def test_partitions_recompute_a_size_that_no_input_of_the_model_has(lowered: Any) -> None:
    """The height of the features is (h - 1) // 2 + 1, where h is the height of the image."""

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 2, 3, 2, 1), nn.Conv2d(2, 2, 3, 2, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            features = self.first(image)
            height, width = features.shape[2:]
            flat = features.flatten(2).cumsum(2)
            smaller = self.second(flat.reshape(-1, 2, height, width).relu())
            return F.interpolate(smaller, size=(height, width)) + features

    dims = [{2: Dim("height", min=8, max=40), 3: Dim("width", min=8, max=40)}]
    model = lowered(Convolutions(), torch.rand(1, 1, 16, 20), dims=dims)
    cases = [[torch.rand(1, 1, *size)] for size in ((8, 8), (9, 31), (40, 39), (17, 40))]
    for listed in (("aten.cumsum",), ("aten.relu",), ("aten.reshape", "aten.flatten")):
        model.partition(torch_executed_ops=listed).assert_valid_document().assert_same_results_as_unpartitioned(*cases)
    partitioned = model.partition(torch_executed_ops=("aten.cumsum",))
    size = ["add", 1, ["floordiv", ["add", -1, ["sym", 0]], 2]]
    assert size in [list(axis) for axis in partitioned["p0"].outputs[0].shape if not isinstance(axis, int)]


class Token(nn.Module):
    """Creates a tensor with the size of the batch, but gets no tensor with this size."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 4))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.token.relu().expand(batch, -1, -1)


class WithToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = Token()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return torch.cat([self.token(x.shape[0]), x], 1)


def test_a_partition_without_a_tensor_of_a_needed_size_gets_one_as_an_input(lowered: Any) -> None:
    model = lowered(WithToken(), *rows(3, 6), dims=DIMS)
    partitioned = (
        model.partition(granularity=("token",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned(*(rows(*case) for case in CASES))
    )
    assert [source for source, _ in partitioned["token"].inputs] == ["input:0"]
    assert partitioned["token"].kind == "tensorrt"


def test_one_input_gives_several_sizes(lowered: Any) -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) + torch.ones(x.shape[0], 1, 1).cos() + torch.ones(x.shape[1], 1).cos()

    partitioned = lowered(both, *rows(3, 6), dims=DIMS).partition(torch_executed_ops=("aten.cumsum", "aten.add"))
    partitioned.assert_valid_document().assert_same_results_as_unpartitioned(*(rows(*case) for case in CASES))
    assert [source for source, _ in partitioned["p0"].inputs] == ["input:0"]


def test_the_size_of_two_concatenated_inputs_is_a_sum_of_symbols(lowered: Any) -> None:
    def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, y]).cumsum(0)
        return both.relu()[: max(x.shape[0], y.shape[0])].cumsum(0).sum(0)

    dims = [{0: Dim("one", min=1, max=8)}, {0: Dim("two", min=1, max=8)}]
    model = lowered(joined, torch.rand(3, 4), torch.rand(5, 4), dims=dims)
    cases = [[torch.rand(first, 4), torch.rand(second, 4)] for first, second in ((1, 8), (8, 1), (4, 4))]
    partitioned = (
        model.partition(torch_executed_ops=("aten.cumsum",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned(*cases)
    )
    assert ["add", ["sym", 0], ["sym", 1]] in [
        list(axis) for axis in partitioned["p0"].outputs[0].shape if not isinstance(axis, int)
    ]


def test_equal_sizes_are_computed_once(lowered: Any) -> None:
    model = lowered(reshapes, *rows(3, 6), dims=DIMS)
    partitioned = model.partition(torch_executed_ops=("aten.cumsum",))
    for program in partitioned.result.programs.values():
        sizes = [node.args for node in program.graph.nodes if node.target is torch.ops.aten.sym_size.int]
        assert len(sizes) == len(set(sizes))


DATA_DEPENDENT: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "nonzero": (lambda x: (x.relu().nonzero().float() * 2).sum(0).tanh(), (torch.eye(4),)),
    "masked_select": (lambda x: x.relu()[x > 0].cumsum(0).sum(0).tanh() + x.exp(), (torch.eye(4),)),
    "count as a number": (lambda x: x.exp() * x.nonzero().shape[0], (torch.eye(4),)),
    "count as a size": (
        lambda x: torch.ones(x.nonzero().shape[0], 2).cumsum(0).sum(0) + x[0, :2].exp(),
        (torch.eye(4),),
    ),
    "item as a bound": (lambda x, n: x.relu()[:, : n.max().item()].sum(1).tanh(), (torch.eye(4), torch.tensor([2, 1]))),
    "item as a number": (lambda x, n: x.relu() * n.max().item() + x.tanh(), (torch.eye(4), torch.tensor([2, 1]))),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent_operators_stay_in_torch(name: str, lowered: Any) -> None:
    function, example = DATA_DEPENDENT[name]
    model = lowered(function, *example)
    other_inputs = [torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, -1], [0] * 4, [1] * 4]), *example[1:]]
    for listed in ((), ("aten.relu",), ("aten.exp", "aten.max"), ("aten.tanh",)):
        partitioned = (
            model.partition(torch_executed_ops=listed)
            .assert_valid_document(with_storage=not listed)
            .assert_same_results_as_unpartitioned(example, other_inputs)
        )
        for entry in partitioned.partitions:
            program = partitioned.result.programs[entry.graph]
            if entry.kind == "tensorrt":
                assert "data" not in str(entry.inputs) + str(entry.outputs)
                for node in program.graph.nodes:
                    assert not free_unbacked_symbols(node.meta.get("val"))  # no size depends on data
        reasons = {reason for entry in partitioned.partitions for reason in entry.reasons.values()}
        assert any("depends on data" in reason for reason in reasons)


def test_operators_before_and_after_a_data_dependent_operator_are_tensorrt(lowered: Any) -> None:
    partitioned = lowered(DATA_DEPENDENT["nonzero"][0], torch.eye(4)).partition()
    assert partitioned.kinds == ["tensorrt", "torch", "tensorrt"]
    assert partitioned.operators("p0") == ["aten.relu.default"]
    assert partitioned.operators("p2") == ["aten.tanh.default"]
