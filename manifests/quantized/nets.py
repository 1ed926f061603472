"""A small classifier of images, in float32 and quantized by several tools."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, stride=4, padding=1)
        self.hidden = nn.Linear(256, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.conv(image)).flatten(1)
        return self.head(torch.relu(self.hidden(features)))


class FakeQuantizedLinear(nn.Linear):
    """A linear layer that quantizes its inputs and weights to int8, and dequantizes them."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.register_buffer("scales", self.weight.detach().abs().amax(1) / 127)
        self.register_buffer("zero_points", torch.zeros(out_features, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.weight, self.scales, self.zero_points, 0, -127, 127)
        return nn.functional.linear(x, weight, self.bias)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return Classifier().eval()


def images(count: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 1, 16, 16, generator=generator) for _ in range(count)]


def fake_quantized() -> nn.Module:
    """The classifier with two layers that call ``torch.fake_quantize_*``."""
    torch.manual_seed(0)
    module = Classifier()
    module.hidden, module.head = FakeQuantizedLinear(256, 64), FakeQuantizedLinear(64, 10)
    return module.eval()


def trained_with_qat() -> nn.Module:
    """The classifier after PyTorch's ``prepare_qat`` and a calibration. Its observers are disabled."""
    from torch.ao import quantization

    inputs = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
    )
    weights = quantization.default_per_channel_weight_fake_quant
    torch.manual_seed(0)
    module = Classifier().train()
    module.qconfig = quantization.QConfig(activation=inputs, weight=weights)
    quantization.prepare_qat(module, inplace=True)
    for image in images():
        module(image)
    module.apply(quantization.disable_observer)
    return module.eval()


def quantized_by_pt2e() -> nn.Module:
    """The classifier after torchao's ``convert_pt2e``."""
    from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

    inputs = QuantizationSpec(
        torch.int8, MinMaxObserver, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_symmetric
    )
    weights = QuantizationSpec(
        torch.int8,
        PerChannelMinMaxObserver,
        quant_min=-127,
        quant_max=127,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )

    class Symmetric(Quantizer):
        """Quantizes the inputs and weights of linear layers to int8. All zero points are 0, as TensorRT requires."""

        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            for node in model.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
                x, weight = node.args[:2]
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map={x: inputs, weight: weights}, _annotated=True
                )
            return model

        def validate(self, model: torch.fx.GraphModule) -> None:
            pass

    batch = torch.export.Dim("batch", min=1, max=8)
    exported = torch.export.export(classifier(), (images()[0],), dynamic_shapes=({0: batch},))
    prepared = prepare_pt2e(exported.module(), Symmetric())
    for image in images():
        prepared(image)
    return convert_pt2e(prepared)


def quantized_by_modelopt(configuration: str) -> nn.Module:
    """The classifier, quantized by NVIDIA's Model Optimizer. `configuration` is a name such as ``FP8_DEFAULT_CFG``."""
    import modelopt.torch.quantization as mtq

    def calibrate(module: Any) -> None:
        for image in images():
            module(image)

    return mtq.quantize(classifier(), getattr(mtq, configuration), calibrate)
