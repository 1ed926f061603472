"""The settings in Torch-TensorRT's guides, such as precision, operators in PyTorch, and block sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.guide.conftest import assert_equals_eager, partitions
from trtbuild import Input
from trtbuild.errors import ConversionRefused

ROWS = Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(8, 16))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.layers[0](x))
        x = torch.cumsum(x, 1)
        return torch.relu(self.layers[2](torch.relu(self.layers[1](x))))


@pytest.fixture
def layers() -> torch.nn.Module:
    return Layers().eval()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [({"enabled_precisions": {torch.half}}, "float16"), ({"precision": "bfloat16"}, "bfloat16")],
)
def test_a_model_in_half_precision_is_near_the_eager_model(
    compile_module: Any, layers: Any, setting: dict[str, Any], expected: str
) -> None:
    model = compile_module(layers, [ROWS], **setting)
    for rows in (1, 8):
        assert_equals_eager(model, layers, torch.randn(rows, 16), tolerance=5e-2)
    assert model.package.index.precision == expected


def test_torch_executed_ops_partition_the_graph(compile_module: Any, layers: Any) -> None:
    model = compile_module(layers, [ROWS], torch_executed_ops={torch.ops.aten.cumsum}, min_block_size=1)
    assert partitions(model) == ["tensorrt", "torch", "tensorrt"]
    for rows in (1, 5, 8):
        assert_equals_eager(model, layers, torch.randn(rows, 16))


def test_a_piece_below_min_block_size_stays_in_pytorch(compile_module: Any, layers: Any) -> None:
    model = compile_module(layers, [ROWS], torch_executed_ops=["aten.cumsum"], min_block_size=3)
    assert partitions(model) == ["torch", "tensorrt"]
    assert_equals_eager(model, layers, torch.randn(5, 16))


def test_require_full_compilation_refuses_operators_in_pytorch(compile_module: Any, layers: Any) -> None:
    assert partitions(compile_module(layers, [ROWS], require_full_compilation=True)) == ["tensorrt"]
    with pytest.raises(ConversionRefused, match=r"aten\.cumsum"):
        compile_module(layers, [ROWS], require_full_compilation=True, torch_executed_ops=["aten.cumsum"])


def test_granularity_builds_an_engine_for_each_module(compile_module: Any, layers: Any) -> None:
    model = compile_module(layers, [ROWS], granularity=["layers.*"])
    assert len(partitions(model)) > 3
    assert_equals_eager(model, layers, torch.randn(5, 16))
