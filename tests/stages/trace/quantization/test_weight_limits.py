"""Limits of a quantizer of weights are widened to all of int8 if zero points are 0 and no weight is outside the limits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.stages.trace.conftest import make_job, trace_in_process
from trtbuild.stages.program.functional import Program

_CHANNELS = torch.ops.aten.fake_quantize_per_channel_affine.default
_TENSOR = torch.ops.aten.fake_quantize_per_tensor_affine.default


class Quantized(nn.Module):
    def __init__(self, largest: float, zero_point: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-largest, largest, 32).reshape(4, 8))
        self.register_buffer("scales", torch.full((4,), 0.01))
        self.register_buffer("zero_points", torch.full((4,), zero_point, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.01, 0, -127, 127)
        weight = torch.fake_quantize_per_channel_affine(self.weight, self.scales, self.zero_points, 0, -127, 127)
        return nn.functional.linear(x, weight)


def limits(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """For each quantized tensor: `quant_min` and `quant_max` of its quantizer in the traced program."""
    traced = trace_in_process(module.eval(), make_job({"x": ((1, 8), (2, 8), (4, 8))}))
    nodes = Program.from_bytes(traced.program).graph.nodes
    found = {node.target: node for node in nodes if node.target in (_CHANNELS, _TENSOR)}
    return {"weight": tuple(found[_CHANNELS].args[4:6]), "x": tuple(found[_TENSOR].args[3:5])}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Quantized(1.27), (-128, 127)),
        (Quantized(1.28), (-127, 127)),
        (Quantized(1.0, zero_point=1), (-127, 127)),
        (Quantized(float("nan")), (-127, 127)),
    ],
    ids=["inside", "outside", "zero point", "NaN"],
)
def test_only_limits_of_weights_that_no_weight_exceeds_are_widened(
    module: nn.Module, expected: tuple[int, ...]
) -> None:
    assert limits(module) == {"weight": expected, "x": (-127, 127)}
