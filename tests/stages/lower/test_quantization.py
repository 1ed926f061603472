"""Quantizers keep their limits through lowering and conversion."""

from __future__ import annotations

import pytest

from tests.fuzz.comparing import differences
from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import ModuleCase, build
from trtbuild.stages.program.quantized import register_operators

_CHANNELS = "torch.full((8,), 0.01), torch.zeros(8, dtype=torch.int32), 1"


def _decomposed(arguments: str) -> str:
    """A quantizer and a dequantizer, as PyTorch's quantization of exported programs (PT2E) writes them."""
    operators = "torch.ops.quantized_decomposed"
    quantized = f"{operators}.quantize_per_tensor(x0, {arguments})"
    return f"{operators}.dequantize_per_tensor({quantized}, {arguments})"


@pytest.mark.parametrize(
    "body",
    [
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 0, -128, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 0, -127, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.1, 0, -8, 7)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.01, 3, -128, 127)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.005, 7, 0, 255)",
        "torch.fake_quantize_per_tensor_affine(x0, 0.001, 0, -300, 300)",
        f"torch.fake_quantize_per_channel_affine(x0, {_CHANNELS}, -128, 127)",
        f"torch.fake_quantize_per_channel_affine(x0, {_CHANNELS}, -7, 7)",
        _decomposed("0.01, 0, -127, 127, torch.int8"),
        _decomposed("0.001, 0, -448, 448, torch.float8_e4m3fn"),
    ],
)
def test_a_quantizer_is_right_beyond_its_limits(body: str) -> None:
    """Inputs are normally distributed. All limits are between -1.4 and 1.4, so some inputs are beyond them."""
    register_operators()
    case = ModuleCase(module_from_text([], f"{body} * 2", 1), [("float32", [(2, 3, 8), 8])])
    assert not differences(case, build(case)).differences
