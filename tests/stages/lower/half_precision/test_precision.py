"""A program in half precision equals the eager float32 model within a tolerance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.lower.half_precision.test_dtypes import layer_text
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program.functional import Program

_TOLERANCE = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}
_LOWEST = torch.finfo(torch.float32).min
_MODELS = ["mlp", "conv", "manual_attention", "sdpa", "rms_norm", "pre_norm", "post_norm", "positions", "vit", "bert"]


def assert_close(results: list[torch.Tensor], expected_tensors: list[torch.Tensor], precision: str) -> None:
    assert [value.dtype for value in results] == [value.dtype for value in expected_tensors]
    for result, expected in zip(results, expected_tensors, strict=True):
        assert torch.equal(result.isnan(), expected.isnan())
        error = (result - expected).nan_to_num().abs().max() / expected.nan_to_num().abs().max()
        assert error <= _TOLERANCE[precision]


_RUNS = [(name, precision) for name in _MODELS for precision in ("float32", "float16")]
_RUNS += [(name, "bfloat16") for name in ("mlp", "conv", "manual_attention", "rms_norm", "post_norm", "bert")]


@pytest.mark.parametrize(("name", "precision"), _RUNS)
def test_a_lowered_program_equals_eager(traced: Any, lowered: Any, name: str, precision: str) -> None:
    assert_close(traced(name).run(lowered(name, precision)), traced(name).eager(), precision)


@pytest.mark.parametrize(
    ("name", "precision"), [("mlp", "bfloat16"), ("conv", "float16"), ("vit", "float16"), ("bert", "bfloat16")]
)
def test_matrix_products_are_half_and_inputs_outputs_and_weights_keep_their_dtypes(
    traced: Any, lowered: Any, name: str, precision: str
) -> None:
    program, original = lowered(name, precision), traced(name).program
    half = getattr(torch, precision)
    products = [n for n in program.graph.nodes if str(n.target).startswith(("aten.linear", "aten.conv2d"))]
    assert products and all(node.meta["val"].dtype is half for node in products)
    for lowered_node, original_node in zip(program.placeholders, original.placeholders, strict=True):
        assert lowered_node.meta["val"].dtype is original_node.meta["val"].dtype
    for lowered_node, original_node in zip(program.output_nodes, original.output_nodes, strict=True):
        assert lowered_node.meta["val"].dtype is original_node.meta["val"].dtype


def test_a_float32_program_has_no_values_in_half_precision(lowered: Any) -> None:
    dtypes = {
        node.meta["val"].dtype
        for node in lowered("vit").graph.nodes
        if node.op != "output" and "val" in node.meta and isinstance(node.meta["val"], torch.Tensor)
    }
    assert torch.float16 not in dtypes and torch.bfloat16 not in dtypes


class SoftmaxWithInfinities(nn.Module):
    """A softmax of scores that are masked with -inf. Eager returns NaN for a row that is masked entirely."""

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rows_that_are_nan_in_eager_stay_nan(lower_module: Any, precision: str) -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    traced, program = lower_module(SoftmaxWithInfinities(), (torch.randn(2, 3), mask), precision)
    assert traced.eager()[0][1].isnan().all()
    assert_close(traced.run(program), traced.eager(), precision)


class SeveralTypes(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        double = x.double() / 3
        cast = (x.to(torch.bfloat16) * 2).float()
        index = (x.sigmoid() * 3).long() + ids
        counts = torch.cumsum(ids.float() * 5000.0, 0)
        return double, cast, torch.gather(x, 1, index % 4), counts, (x > 0.5).sum(1), torch.full_like(x, 7.0)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_integers_booleans_float64_and_casts_of_the_model_are_kept(lower_module: Any, precision: str) -> None:
    inputs = (torch.rand(3, 4) * 4, torch.randint(0, 4, (3, 4)))
    traced, program = lower_module(SeveralTypes(), inputs, precision)
    results, expected_results = traced.run(program), traced.eager()
    assert [value.dtype for value in results] == [value.dtype for value in expected_results]
    gathered, expected = results.pop(2), expected_results.pop(2)
    assert_close([gathered], [expected], precision)
    assert all(map(torch.equal, results, expected_results)) and len(results) == len(expected_results) == 5


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return torch.cond(y.sum() > 0, lambda v: v * 2, lambda v: v - 1, (y,)) @ x


def test_nested_graphs_stay_in_float32(lower_module: Any) -> None:
    traced, program = lower_module(Branch(), (torch.rand(4, 4),), "float16")
    (cond,) = (node for node in program.graph.nodes if "cond" in str(node.target))
    # the arguments of a cond: predicate, two graphs, operands
    assert [source.meta["val"].dtype for source in cond.args[3]] == [torch.float32]
    assert_close(traced.run(program), traced.eager(), "float16")


class Upsamples(nn.Module):
    """A model with an operator whose C++ kernel needs the size of its input as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(self.conv(image), scale_factor=2.0, mode="nearest")


@pytest.mark.parametrize("reloaded", [False, True])
def test_a_dynamic_size_stays_dynamic(lower_module: Any, decompositions: Any, reloaded: bool) -> None:
    height = torch.export.Dim("height", min=2, max=20)
    traced, program = lower_module(Upsamples(), (torch.randn(1, 3, 10, 10),), "float16", ({2: height},))
    if reloaded:  # in a build, the lower step reads a stored program
        program = lower(Program.from_bytes(traced.program.to_bytes()), "float16", decompositions)
    (upsampled,) = (node for node in program.graph.nodes if "upsample" in str(node.target))
    assert upsampled.meta["val"].dtype is torch.float16
    assert [type(size) for size in upsampled.meta["val"].shape] == [int, int, torch.SymInt, int]
    traced.inputs = (torch.randn(1, 3, 7, 10),)
    assert_close(traced.run(program), traced.eager(), "float16")


class _BiasedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return x + (query @ key.mT / 4 + mask).softmax(-1) @ value


class _BiasedAttention(nn.Module):
    """The caller's mask plus a bias that a layer computes from a table, as in Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 5, 4))
        self.bias = nn.Linear(4, 1)
        self.layers = nn.ModuleList([_BiasedLayer(), _BiasedLayer()])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        biased = 16 * self.bias(self.table).sigmoid()[..., 0] + mask
        for layer in self.layers:
            x = layer(x, biased)
        return x


@pytest.mark.parametrize("lowest", [-1e9, _LOWEST])
def test_a_mask_plus_a_bias_keeps_its_lowest_number(lower_module: Any, lowest: float) -> None:
    torch.manual_seed(0)
    mask = torch.zeros(2, 5, 5)
    mask[0, :, 3:], mask[1] = lowest, lowest  # every key of the second sequence is masked
    model_case, program = lower_module(_BiasedAttention(), (torch.randn(2, 5, 16), mask), "float16")
    value, expected = model_case.run(program)[0], model_case.eager()[0]
    assert (value - expected).abs().max() / expected.abs().max() <= 5e-3
    products = [node for node in program.graph.nodes if str(node.target).startswith(("aten.linear", "aten.matmul"))]
    assert len(products) == 7 and {node.meta["val"].dtype for node in products} == {torch.float16}


class _ScoresLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, earlier: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = query @ key.mT / 4 + earlier
        return x + scores.softmax(-1) @ value, scores


class _ResidualAttention(nn.Module):
    """Each layer adds the masked scores of the layer before it, as in RealFormer. The first one adds the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_ScoresLayer(), _ScoresLayer(), _ScoresLayer()])

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, scores = layer(x, scores)
        return x


class _JoinedScores(nn.Module):
    """The masked scores are joined with scores that have no mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([(x @ x.mT)[:, :2], x @ x.mT + mask], 1).softmax(-1)


@pytest.mark.parametrize("module", [_ResidualAttention(), _JoinedScores()])
def test_scores_with_a_mask_keep_its_lowest_number_for_all_readers(lower_module: Any, module: nn.Module) -> None:
    mask = torch.zeros(2, 5, 5)
    mask[0, :, 3:], mask[1] = _LOWEST, _LOWEST  # every key of the second sequence is masked
    model_case, program = lower_module(module, (torch.randn(2, 5, 16), mask), "float16")
    assert_close(model_case.run(program), model_case.eager(), "float16")
    if isinstance(module, _ResidualAttention):
        layers = [layer_text(program, f"layers.{index}") for index in range(3)]
        assert layers[0] and all(layer == layers[0] for layer in layers)
