"""Quantized modules for tests: by PT2E, and with ``torch.fake_quantize``."""

from __future__ import annotations

from typing import Any

import torch

#: A source file with functions that return quantized modules of 16 inputs and 8 outputs.
NETS = '''
import torch
from torch import nn

STEP = 0.02


class Fake(nn.Module):
    """A linear layer as quantization-aware training leaves it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.register_buffer("scales", torch.full((8,), 0.01))
        self.register_buffer("zero_points", torch.zeros(8, dtype=torch.int32))

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, STEP, 0, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.linear.weight, self.scales, self.zero_points, 0, -127, 127)
        return nn.functional.linear(x, weight, self.linear.bias)


class ZeroPoints(nn.Module):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, STEP, 3, -128, 127) * 2


def fake_quantized():
    torch.manual_seed(0)
    return Fake().eval()


def with_zero_points():
    return ZeroPoints().eval()


def quantized_by_pt2e():
    from tests.projects.quantized import pt2e

    return pt2e()[0]
'''


def pt2e() -> tuple[Any, torch.Tensor]:
    """The result of ``convert_pt2e``, which is in training mode, and an example of its input."""
    from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

    class Symmetric(Quantizer):
        """Quantizes linear layers to int8, with zero points of 0, as TensorRT needs it."""

        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            activation = QuantizationSpec(
                torch.int8, MinMaxObserver, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_symmetric
            )
            weight = QuantizationSpec(
                torch.int8,
                PerChannelMinMaxObserver,
                quant_min=-127,
                quant_max=127,
                qscheme=torch.per_channel_symmetric,
                ch_axis=0,
            )
            for node in model.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
                x, w = node.args[:2]
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map={x: activation, w: weight}, _annotated=True
                )
            return model

        def validate(self, model: torch.fx.GraphModule) -> None:
            pass

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    example = torch.randn(4, 16)
    sizes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    exported = torch.export.export(module, (example,), dynamic_shapes=sizes)
    prepared = prepare_pt2e(exported.module(), Symmetric())
    prepared(example)
    return convert_pt2e(prepared), example
