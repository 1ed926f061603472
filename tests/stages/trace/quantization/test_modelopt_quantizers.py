"""Quantizers of Model Optimizer become PyTorch's operators for quantization.

Model Optimizer cannot be installed beside the libraries of the other tests. So these tests use a fake quantizer with the
attributes and the arithmetic of the real one. `test_the_library` runs if Model Optimizer is installed.
"""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job
from trtbuild.errors import SourceError
from trtbuild.stages.trace.quantization import modelopt_quantizers
from trtbuild.stages.trace.quantization.modelopt_quantizers import has_quantizers, write_quantizers

JOB = make_job({"x": (4, 8)})
PLACE: dict[str, Any] = {"file": "nets.py", "line": 3}


class FakeTensorQuantizer(nn.Module):
    """``TensorQuantizer`` of modelopt 0.47: its settings, and its arithmetic on a CPU."""

    def __init__(self, amax: torch.Tensor, **settings: Any) -> None:
        super().__init__()
        self.pre_quant_scale = self.block_sizes = None
        self._disabled = self._unsigned = self._narrow_range = self._dynamic = False
        self._if_quant = self.fake_quant = True
        self._num_bits: Any = 8
        self.register_buffer("_amax", amax)
        vars(self).update(settings)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._disabled:
            return inputs
        if self._amax.min() < 0:  # torch.export cannot trace this branch
            raise ValueError("Negative values in amax")
        scale = 127 / self._amax
        is_zero = self._amax == 0
        low = -127 if self._narrow_range else -128
        quantized = torch.clamp((inputs * torch.where(is_zero, 0, scale)).round(), low, 127)
        return quantized / torch.where(is_zero, 1, scale)


class Linear(nn.Module):
    def __init__(self, inputs: FakeTensorQuantizer, weight: FakeTensorQuantizer) -> None:
        super().__init__()
        self.linear, self.input_quantizer, self.weight_quantizer = nn.Linear(8, 4), inputs, weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight_quantizer(self.linear.weight)
        return nn.functional.linear(self.input_quantizer(x), weight, self.linear.bias)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(modelopt_quantizers._MODULE)
    vars(module)["TensorQuantizer"] = FakeTensorQuantizer
    monkeypatch.setitem(sys.modules, modelopt_quantizers._MODULE, module)


def quantized(amax: tuple[float, ...] = (0.3, 0.3, 0.3, 0.3), **settings: Any) -> Linear:
    torch.manual_seed(0)
    weight = FakeTensorQuantizer(torch.tensor(amax).reshape(4, 1), _narrow_range=True)
    return Linear(FakeTensorQuantizer(torch.tensor(2.0), **settings), weight).eval()


def test_a_rewritten_model_can_be_exported_and_gives_the_results_of_the_original() -> None:
    original, x = quantized(), torch.randn(4, 8)
    rewritten = copy.deepcopy(original)
    assert has_quantizers(rewritten)
    write_quantizers(rewritten, JOB, PLACE)
    torch.testing.assert_close(rewritten(x), original(x))
    exported = torch.export.export(rewritten, (x,))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert sum("quantized_decomposed.quantize" in target for target in targets) == 2
    assert rewritten.state_dict().keys() == original.state_dict().keys()


def test_a_disabled_quantizer_is_not_changed() -> None:
    rewritten = quantized(_disabled=True)
    write_quantizers(rewritten, JOB, PLACE)
    assert "forward" not in vars(rewritten.input_quantizer) and "forward" in vars(rewritten.weight_quantizer)


def test_a_channel_of_zeros_stays_zero() -> None:
    original = quantized((0.3, 0.0, 0.3, 0.3))
    with torch.no_grad():
        original.linear.weight[1] = 0
    rewritten = copy.deepcopy(original)
    write_quantizers(rewritten, JOB, PLACE)
    x = torch.randn(4, 8)
    torch.testing.assert_close(rewritten(x), original(x))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"_num_bits": (4, 3)}, "quantizes to 8-bit floats"),
        ({"_num_bits": 4}, "quantizes to 4-bit integers"),
        ({"_unsigned": True}, "quantizes to unsigned 8-bit integers"),
        ({"block_sizes": {-1: 16}}, "quantizes in blocks"),
        ({"pre_quant_scale": torch.ones(8)}, "scales its input"),
        ({"_amax": torch.tensor(0.0)}, "has a scale of 0"),
        ({"_amax": torch.tensor(float("nan"))}, "has scales that are negative or not finite"),
    ],
)
def test_rejects_other_quantizers_and_names_them(settings: dict[str, Any], problem: str) -> None:
    rewritten = quantized()
    for name, value in settings.items():
        setattr(rewritten.input_quantizer, name, value)
    with pytest.raises(SourceError, match=f"'input_quantizer' of Model Optimizer {problem}") as caught:
        write_quantizers(rewritten, JOB, PLACE)
    assert (caught.value.file, caught.value.line) == ("nets.py", 3)


def test_a_quantizer_with_other_arithmetic_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTensorQuantizer, "forward", lambda self, inputs: inputs * 1.1)
    with pytest.raises(SourceError, match="does not quantize as its settings say"):
        write_quantizers(quantized(), JOB, PLACE)


def test_a_weights_file_is_refused() -> None:
    with pytest.raises(SourceError, match="cannot have `weights:`"):
        write_quantizers(quantized(), make_job({"x": (4, 8)}, weights=()), PLACE)


def test_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, modelopt_quantizers._MODULE)
    mtq = pytest.importorskip("modelopt.torch.quantization")
    x = torch.randn(4, 8)
    original = mtq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), mtq.INT8_DEFAULT_CFG, lambda module: module(x))
    rewritten = copy.deepcopy(original)
    write_quantizers(rewritten, JOB, PLACE)
    torch.testing.assert_close(rewritten(x), original(x))
