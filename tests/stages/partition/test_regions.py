"""`granularity` with module paths: each call of a matched module is a partition, and equal modules share a structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from trtbuild.errors import SourceError

DIMS = [{0: Dim("batch", min=1, max=6), 1: Dim("length", min=2, max=9)}]
CASES = [[torch.rand(*size, 8)] for size in ((1, 2), (6, 9), (3, 4))]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Layer(nn.Module):
    """A layer that gets sizes as arguments. The model reads the sizes once, for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.mlp, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), Mlp(), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, batch: Any, length: Any) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attended = ((q @ k.transpose(-2, -1)) / length**0.5).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(x)


class Encoder(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.final = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        x = self.embeddings(x)
        for layer in self.layers:
            x = layer(x, batch, length)
        return self.final(x)


@pytest.fixture(scope="module")
def encoder(lowered: Any) -> Any:
    return lowered(Encoder(), torch.rand(3, 4, 8), dims=DIMS)


def test_each_match_is_a_partition_and_equal_layers_share_a_structure(encoder: Any) -> None:
    partitioned = (
        encoder.partition(granularity=("layers.*",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned(*CASES)
    )
    assert partitioned.names == ["p0", "layers.0", "layers.1", "layers.2", "p4"]
    assert len({partitioned[f"layers.{number}"].graph for number in range(3)}) == 1
    assert [len(partitioned[f"layers.{number}"].inputs) for number in range(3)] == [1, 1, 1]
    weights = [set(partitioned[f"layers.{number}"].weights) for number in range(3)]
    assert not weights[0] & weights[1] and len(weights[0]) == 10


def test_the_weights_of_equal_layers_have_equal_shapes(encoder: Any) -> None:
    partitioned = encoder.partition(granularity=("layers.*",))
    weights = [[encoder.weights[slot] for slot in partitioned[f"layers.{number}"].weights] for number in range(2)]
    assert [value.shape for value in weights[0]] == [value.shape for value in weights[1]]


def test_an_exact_path_is_one_partition(encoder: Any) -> None:
    partitioned = encoder.partition(granularity=("embeddings",)).assert_same_results_as_unpartitioned(*CASES)
    assert partitioned.names == ["embeddings", "p1"]
    assert partitioned.operators("embeddings") == ["aten.linear.default"]


def test_the_first_match_wins(encoder: Any) -> None:
    outer = encoder.partition(granularity=("layers.*", "layers.*.mlp"))
    assert outer.document == encoder.partition(granularity=("layers.*",)).document
    inner = (
        encoder.partition(granularity=("layers.*.mlp", "layers.*"))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned(*CASES)
    )
    mlps = [name for name in inner.names if name.endswith(".mlp")]
    assert mlps == ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]
    assert len({inner[name].graph for name in mlps}) == 1
    assert all(
        inner.operators(name) == ["aten.linear.default", "aten.gelu.default", "aten.linear.default"] for name in mlps
    )
    assert [name for name in inner.names if name.startswith("layers.0")] == ["layers.0#0", "layers.0.mlp", "layers.0#1"]


def test_a_wildcard_matches_within_one_part_of_a_path(encoder: Any) -> None:
    assert encoder.partition(granularity=("lay*.[01]",)).names == ["p0", "layers.0", "layers.1", "p3"]
    assert encoder.partition(granularity=("*",)).names == ["embeddings", "layers", "final"]


@pytest.mark.parametrize(
    ("pattern", "suggestion"),
    [
        ("layer.*", "layers.*"),
        ("layers.*.mpl", "layers.*.mlp"),
        ("encoder.layers.*", "layers.*"),
        ("embedding", "embeddings"),
    ],
)
def test_the_error_about_a_pattern_suggests_a_similar_path(pattern: str, suggestion: str, encoder: Any) -> None:
    with pytest.raises(SourceError, match="matches no module") as caught:
        encoder.partition(granularity=("layers.*", pattern))
    assert repr(pattern) in caught.value.text and caught.value.code == "granularity"
    assert f"did you mean {suggestion!r}?" in (caught.value.hint or "")


@pytest.mark.parametrize("pattern", ["", "layers.7", "layers.*.mlp.up.weight", "**.mlp", "Layers.*"])
def test_rejects_a_pattern_that_matches_nothing(pattern: str, encoder: Any) -> None:
    with pytest.raises(SourceError, match="matches no module"):
        encoder.partition(granularity=(pattern,))


class Repeats(nn.Module):
    """Calls one layer three times: twice in a row, and again after another layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = Layer()
        self.between = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        x = self.layer(self.layer(x, batch, length), batch, length)
        return self.layer(self.between(x), batch, length)


@pytest.fixture(scope="module")
def repeats(lowered: Any) -> Any:
    return lowered(Repeats(), torch.rand(3, 4, 8), dims=DIMS)


def test_each_call_of_a_module_is_a_partition(repeats: Any) -> None:
    partitioned = (
        repeats.partition(granularity=("layer",)).assert_valid_document().assert_same_results_as_unpartitioned(*CASES)
    )
    assert partitioned.names == ["layer#0", "layer#1", "p2", "layer#2"]
    assert (
        len({(partitioned[name].graph, partitioned[name].weights) for name in partitioned.names if name != "p2"}) == 1
    )


def test_each_call_of_an_inner_module_is_a_partition(repeats: Any) -> None:
    partitioned = repeats.partition(granularity=("layer.mlp",)).assert_same_results_as_unpartitioned(*CASES)
    mlps = [partitioned[name] for name in partitioned.names if name.startswith("layer.mlp")]
    assert len(mlps) == 3 and len({(entry.graph, entry.weights) for entry in mlps}) == 1


class Independent(nn.Module):
    """Calls one module twice. The calls do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.tower(x) - self.tower(y)


def test_two_independent_calls_are_two_partitions_of_one_structure(lowered: Any) -> None:
    partitioned = (
        lowered(Independent(), torch.rand(2, 8), torch.rand(2, 8))
        .partition(granularity=("tower",))
        .assert_same_results_as_unpartitioned()
    )
    assert partitioned.names == ["tower#0", "tower#1", "p2"]
    assert partitioned["tower#0"].graph == partitioned["tower#1"].graph


class OddNames(nn.Module):
    """Modules whose names have a meaning in the partitions document, or are not valid as file names (except ``x``)."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = ["input", "weight", "torch", "p1", "model", "a/b", "x", "a:b"]
        for number, name in enumerate(self.parts):
            self.add_module(name, nn.Linear(4 + number, 5 + number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.parts:
            x = getattr(self, name)(x).cumsum(0)
        return x


def test_odd_module_names_give_distinct_partition_names(lowered: Any) -> None:
    model = lowered(OddNames(), torch.rand(3, 4))
    partitioned = (
        model.partition(granularity=("*",), torch_executed_ops=("aten.cumsum",))
        .assert_valid_document()
        .assert_same_results_as_unpartitioned()
    )
    engines = [entry.name for entry in partitioned.partitions if entry.kind == "tensorrt"]
    assert engines == ["input_", "weight_", "torch", "p1", "model", "a_b#0", "x", "a_b#1"]
    assert len(set(partitioned.names)) == len(partitioned.names) == 16
