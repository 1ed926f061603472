"""Quantizers keep their limits, through lowering and conversion. Each model is one line, and runs at several sizes."""

from __future__ import annotations

import pytest

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import Case, build

_CHANNELS = "torch.full((8,), 0.02), torch.zeros(8, dtype=torch.int32), 1"


@pytest.mark.parametrize(
    "body",
    [
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 0, -128, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 0, -127, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.1, 0, -8, 7)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 3, -128, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.02, 7, 0, 255)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.001, 0, -300, 300)",
        f"torch.fake_quantize_per_channel_affine(x0, {_CHANNELS}, -128, 127)",
        f"torch.fake_quantize_per_channel_affine(x0, {_CHANNELS}, -7, 7)",
    ],
)
def test_a_quantizer_is_right_beyond_its_limits(body: str) -> None:
    case = Case(module_from_text([], f"{body} * 2", 1), [("float32", [(2, 3, 8), 8])])
    assert not differences(case, build(case)).differences
