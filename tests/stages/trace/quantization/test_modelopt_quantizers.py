"""Quantizers of Model Optimizer become operators that torch.export can trace."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job
from trtbuild.errors import SourceError
from trtbuild.stages.trace.in_memory import trace_in_memory
from trtbuild.stages.trace.quantization.modelopt_quantizers import (
    has_quantizers,
    read_quantizer,
    replace_modelopt_quantizers,
)
from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout

JOB = make_job({"x": (4, 144)})
PLACE: dict[str, Any] = {"file": "nets.py", "line": 3}

#: Configuration → the layouts of the input and the weight quantizer (None for a quantizer that returns its input).
#: The fields of a layout are type, axis, smallest number and block.
LAYOUTS: dict[str, tuple[QuantizerLayout | None, QuantizerLayout | None]] = {
    "INT8_DEFAULT_CFG": (QuantizerLayout("int8", None, -128), QuantizerLayout("int8", 0, -128)),
    "INT8_SMOOTHQUANT_CFG": (QuantizerLayout("int8", None, -128), QuantizerLayout("int8", 0, -128)),
    "INT8_WEIGHT_ONLY_CFG": (None, QuantizerLayout("int8", 0, -128)),
    "FP8_DEFAULT_CFG": (QuantizerLayout("float8e4m3fn", None, 0), QuantizerLayout("float8e4m3fn", None, 0)),
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG": (None, QuantizerLayout("int4", None, -8, 128)),
    "INT4_AWQ_CFG": (QuantizerLayout(None, None, 0), QuantizerLayout("int4", None, -8, 128)),
    "W4A16_NVFP4_CFG": (None, QuantizerLayout("float4e2m1", None, 0, 16)),
}


@pytest.fixture(scope="module")
def mtq() -> Any:
    return pytest.importorskip("modelopt.torch.quantization")


def inputs() -> torch.Tensor:
    return torch.randn(4, 144, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def models(mtq: Any) -> dict[str, nn.Module]:
    """A quantized linear layer for each configuration. Its 144 inputs are not whole blocks of 128."""
    result = {}
    for name in LAYOUTS:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(144, 4)).eval()
        result[name] = mtq.quantize(model, copy.deepcopy(getattr(mtq, name)), lambda model: model(inputs()))
    return result


def layer(models: dict[str, nn.Module], name: str) -> Any:
    """A copy of the quantized layer, which the test may change."""
    return copy.deepcopy(models[name])[0]  # type: ignore[index]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_quantizer_is_read_and_rebuilt_from_its_layout_and_tensors(models: dict[str, nn.Module], name: str) -> None:
    original = layer(models, name)
    for quantizer, layout in zip((original.input_quantizer, original.weight_quantizer), LAYOUTS[name], strict=True):
        converted = read_quantizer("q", quantizer, PLACE)
        assert (None if converted is None else converted.layout) == layout
        if converted is None:
            continue
        rebuilt = Quantizer(converted.layout, **converted.tensors())
        assert all(tensor.dtype == torch.float32 for tensor in rebuilt.tensors().values())
        value = original.weight.detach() if quantizer is original.weight_quantizer else inputs()
        torch.testing.assert_close(rebuilt(value), converted(value), rtol=0, atol=0)
        if layout is not None and layout.type != "float4e2m1":  # the library's NVFP4 quantizer needs a GPU
            torch.testing.assert_close(rebuilt(value), quantizer(value))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rewritten_model_can_be_exported_and_gives_the_results_of_the_original(
    models: dict[str, nn.Module], name: str
) -> None:
    rewritten, x = copy.deepcopy(models[name]), inputs()
    assert has_quantizers(rewritten)
    replace_modelopt_quantizers(rewritten, JOB, PLACE)
    if name != "W4A16_NVFP4_CFG":  # the library's NVFP4 quantizer needs a GPU
        torch.testing.assert_close(rewritten(x), models[name](x))
    exported = torch.export.export(rewritten, (x,))
    assert any("quantize" in str(node.target) for node in exported.graph.nodes)
    assert rewritten.state_dict().keys() == models[name].state_dict().keys()


def test_nvfp4_gives_the_numbers_of_the_librarys_packed_weights(models: dict[str, nn.Module]) -> None:
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    original = layer(models, "W4A16_NVFP4_CFG")
    converted = read_quantizer("q", original.weight_quantizer, PLACE)
    assert converted is not None
    weight = original.weight.detach().clone()
    weight[1, :16] = 0
    weight[2, :16] *= 1e-7  # the scale of this block is the smallest positive float8 number
    packed, scales, scale = NVFP4QTensor.quantize(weight.clone(), 16, weights_scaling_factor_2=converted.scale)
    expected = packed.dequantize(dtype=torch.float32, scale=scales, double_scale=scale, block_sizes={-1: 16})
    torch.testing.assert_close(converted(weight), expected)


def test_a_disabled_quantizer_is_not_changed(models: dict[str, nn.Module]) -> None:
    rewritten = nn.Sequential(layer(models, "INT8_DEFAULT_CFG"))
    rewritten[0].input_quantizer.disable()
    replace_modelopt_quantizers(rewritten, JOB, PLACE)
    assert "forward" not in vars(rewritten[0].input_quantizer) and "forward" in vars(rewritten[0].weight_quantizer)


def test_a_channel_of_zeros_stays_zero(models: dict[str, nn.Module]) -> None:
    original = nn.Sequential(layer(models, "INT8_DEFAULT_CFG"))
    with torch.no_grad():
        original[0].weight[1] = 0
        original[0].weight_quantizer._amax[1] = 0
    rewritten = copy.deepcopy(original)
    replace_modelopt_quantizers(rewritten, JOB, PLACE)
    torch.testing.assert_close(rewritten(inputs()), original(inputs()))


def test_a_channel_of_inputs_that_was_zero_in_the_calibration_is_an_error(mtq: Any) -> None:
    """Model Optimizer makes every number of such a channel 0. No scale does that."""
    inputs_of_zeros = torch.cat([torch.randn(4, 7), torch.zeros(4, 1)], 1)
    settings = {"quantizer_name": "*input_quantizer", "cfg": {"num_bits": 8, "axis": 1}}
    configuration = {"quant_cfg": [{"quantizer_name": "*", "enable": False}, settings], "algorithm": "max"}
    model = mtq.quantize(nn.Sequential(nn.Linear(8, 8)).eval(), configuration, lambda model: model(inputs_of_zeros))
    assert float(model[0].input_quantizer(torch.full((1, 8), 3.0))[0, 7]) == 0
    with pytest.raises(SourceError, match=r"'0\.input_quantizer' of Model Optimizer has a scale of 0"):
        replace_modelopt_quantizers(model, JOB, PLACE)


def test_an_encoder_with_quantizers_is_traced_with_them(mtq: Any) -> None:
    """The fast path of nn.TransformerEncoderLayer calls no inner layer, and torch.export does not follow it. In the user's
    program, the setting for it is as before after the trace."""
    encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
    model = mtq.quantize(encoder, copy.deepcopy(mtq.INT8_WEIGHT_ONLY_CFG), None)
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(True)
        traced = trace_in_memory(model, make_job({"x": (2, 3, 32)}), Path())
        assert torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert [entry["dtype"] for entry in traced.interface["weights"]].count("int8") == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"_num_bits": (5, 2)}, "quantizes to 8-bit floats"),
        ({"_num_bits": 4}, "quantizes to 4-bit integers"),
        ({"_unsigned": True}, "quantizes to unsigned 8-bit integers"),
        ({"_block_sizes": {-1: 16}}, "quantizes to 8-bit integers in blocks"),
        ({"_block_sizes": {-2: 16}, "_num_bits": 4}, "has blocks along other axes than the last"),
        ({"_rotate": True}, "rotates its input"),
        ({"_dynamic": True}, "stores numbers of its type, or finds its scale while the model runs"),
        ({"_amax": torch.tensor(0.0)}, "has a scale of 0"),
        ({"_amax": torch.tensor(-1.0)}, "has scales that are negative or not finite"),
        ({"_amax": torch.tensor(float("nan"))}, "has scales that are negative or not finite"),
        ({"_pre_quant_scale": torch.tensor([float("inf")])}, "scales its input by numbers that are not finite"),
        ({"_pre_quant_scale": torch.tensor([float("nan")]), "_disabled": True}, "scales its input by numbers that are"),
    ],
)
def test_rejects_unsupported_quantizers_and_names_them(
    models: dict[str, nn.Module], settings: dict[str, Any], problem: str
) -> None:
    rewritten = nn.Sequential(layer(models, "INT8_DEFAULT_CFG"))
    quantizer = rewritten[0].input_quantizer
    for name, value in settings.items():
        if isinstance(value, torch.Tensor) and name not in dict(quantizer.named_buffers()):
            quantizer.register_buffer(name, value)
        else:
            setattr(quantizer, name, value)
    with pytest.raises(SourceError, match=f"'0.input_quantizer' of Model Optimizer {problem}") as caught:
        replace_modelopt_quantizers(rewritten, JOB, PLACE)
    assert (caught.value.file, caught.value.line) == ("nets.py", 3)


@pytest.mark.parametrize("name", ["INT8_DEFAULT_CFG", "FP8_DEFAULT_CFG", "INT4_AWQ_CFG"])
def test_a_quantizer_with_other_arithmetic_is_an_error(models: dict[str, nn.Module], name: str) -> None:
    rewritten = nn.Sequential(layer(models, name))
    original = rewritten[0].weight_quantizer._fake_quantize
    rewritten[0].weight_quantizer._fake_quantize = lambda x: original(x) * 1.1
    with pytest.raises(SourceError, match="does not quantize as its settings say"):
        replace_modelopt_quantizers(rewritten, JOB, PLACE)


def test_a_weights_file_is_refused(models: dict[str, nn.Module]) -> None:
    rewritten = nn.Sequential(layer(models, "INT8_DEFAULT_CFG"))
    with pytest.raises(SourceError, match="cannot have `weights:`"):
        replace_modelopt_quantizers(rewritten, make_job({"x": (4, 144)}, weights=()), PLACE)
