"""The operators of quantizers compute the numbers that ONNX's reference and the types of ml_dtypes give."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

from trtbuild import quantized_operators
from trtbuild.quantized_operators import FLOAT4, FLOAT8, INT4, block_scales, dequantize, quantize

#: Numbers at and beyond the limits of the types, halfway between two numbers of a type, and other numbers.
EDGES = [0.0, -0.0, 0.25, 0.5, 0.75, 1.25, 2.5, 3.5, 5.0, 5.01, 6.5, -7.5, -8.5, 17.0, 447.0, 464.0, 465.0, 1e6, -1e6]


@pytest.fixture(autouse=True)
def operators() -> None:
    quantized_operators.define_operators()


def numbers(rows: int = 3, columns: int = 64) -> torch.Tensor:
    result = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 4
    result[0, : len(EDGES)] = torch.tensor(EDGES)
    return result


@pytest.mark.parametrize(("element", "kind"), [(FLOAT8, T.FLOAT8E4M3FN), (INT4, T.INT4)])
@pytest.mark.parametrize("form", ["whole", "channels", "blocks"])
def test_a_quantizer_computes_onnx_quantize_and_dequantize(element: str, kind: int, form: str) -> None:
    x = numbers()
    scale, options = {
        "whole": (torch.tensor(0.5), {}),
        "channels": (torch.tensor([0.5, 1.0, 2.0]), {"axis": 0}),
        "blocks": (torch.rand(3, 4) + 0.5, {"axis": 1, "block_size": 16}),
    }[form]
    smallest = -8  # of int4; it has no effect on float8
    result = torch.ops.trtbuild.fake_quantize(
        x, scale, element, axis=0, block_size=options.get("block_size", 0), smallest=smallest
    )
    value = h.make_tensor_value_info
    nodes = [
        h.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=kind, **options),
        h.make_node("DequantizeLinear", ["q", "s"], ["y"], **options),
    ]
    inputs = [value("x", T.FLOAT, [3, 64]), value("s", T.FLOAT, list(scale.shape))]
    graph = h.make_graph(nodes, "g", inputs, [value("y", T.FLOAT, [3, 64])])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x.numpy(), "s": scale.numpy()})
    np.testing.assert_array_equal(result.numpy(), expected)


def test_float4_rounds_as_ml_dtypes() -> None:
    x = torch.cat([numbers().flatten(), -numbers().flatten()]).reshape(1, -1)
    stored = quantize(x, torch.tensor(1.0), FLOAT4, axis=-1, block_size=0, smallest=0)
    expected = x.numpy().astype(ml_dtypes.float4_e2m1fn)
    codes = expected.view(np.uint8)
    np.testing.assert_array_equal(stored.numpy(), codes[:, 0::2] | (codes[:, 1::2] << 4))
    result = dequantize(stored, torch.tensor(1.0), FLOAT4, axis=-1, block_size=0)
    np.testing.assert_array_equal(result.numpy(), expected.astype(np.float32))


def test_nvfp4_has_float8_scales_and_small_errors_and_blocks_of_zeros_stay_zero() -> None:
    x = numbers().clamp(-20, 20)
    x[1, :16] = 0
    scale = x.abs().max() / (6 * 448)  # the largest numbers of float4e2m1 and float8e4m3fn
    scales = block_scales(x, scale, 16)
    assert scales.dtype == torch.uint8 and scales.shape == (3, 4)
    assert scales.view(torch.float8_e4m3fn)[1, 0] == 1, "the scale of the block of zeros is not 1"
    result = torch.ops.trtbuild.fake_quantize_two_levels(x, scale, 16)
    assert not result[1, :16].any()
    largest_of_block = x.unflatten(1, (4, 16)).abs().amax(-1).repeat_interleave(16, 1)
    # the largest error is half of the step from 4 to 6, times the scale. Rounding changes the scale by less than 7 %
    assert bool(((result - x).abs() <= largest_of_block / 6 * 1.07).all())


@pytest.mark.parametrize("columns", [33, 48])
def test_a_last_block_can_be_smaller(columns: int) -> None:
    x, scale = numbers(2, columns), torch.tensor([[0.5, 1.0, 2.0]] * 2)
    result = torch.ops.trtbuild.fake_quantize(x, scale, INT4, axis=-1, block_size=16, smallest=-8)
    for block, step in enumerate([0.5, 1.0, 2.0]):
        part = slice(16 * block, min(16 * block + 16, columns))
        expected = (x[:, part] / step).round().clamp(-8, 7) * step
        torch.testing.assert_close(result[:, part], expected, rtol=0, atol=0)


@pytest.mark.parametrize(("element", "limits"), [(INT4, (-8, 7)), (FLOAT4, (-6, 6))])
@pytest.mark.parametrize(("axis", "block_size"), [(1, 0), (-1, 3), (-1, 1)])
def test_a_type_of_4_bits_accepts_an_odd_last_axis(
    element: str, limits: tuple[int, int], axis: int, block_size: int
) -> None:
    steps = {0: torch.tensor([0.5, 1.0, 2.0]), 3: torch.tensor([[0.5], [2.0]]), 1: torch.rand(2, 3) + 0.5}[block_size]
    x = torch.tensor([[0.9, -2.2, 50.0], [3.1, -60.0, 0.0]])
    result = torch.ops.trtbuild.fake_quantize(x, steps, element, axis, block_size, smallest=-8)
    scaled = x / steps
    if element == INT4:
        expected = scaled.round().clamp(*limits)
    else:
        expected = torch.from_numpy(scaled.clamp(*limits).numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32))
    torch.testing.assert_close(result, expected * steps, rtol=0, atol=0)


@pytest.mark.parametrize("columns", [1, 3])
def test_an_odd_last_axis_of_4_bits_cannot_be_stored(columns: int) -> None:
    with pytest.raises(ValueError, match=f"{columns} numbers of 4 bits do not fill whole bytes"):
        quantize(numbers(2, 32)[:, :columns], torch.tensor(1.0), INT4, axis=-1, block_size=0, smallest=-8)


def test_operators_pass_the_checks_of_torch_for_custom_operators() -> None:
    x, scale = numbers(), torch.rand(3, 4) + 0.5
    operators = torch.ops.trtbuild
    stored = quantize(x, scale, INT4, axis=-1, block_size=16, smallest=-8)
    for operator, arguments in (
        (operators.fake_quantize.default, (x.t(), torch.tensor(0.5), FLOAT8, 0, 0, 0)),
        (operators.fake_quantize_two_levels.default, (x.t(), torch.tensor(0.5), 16)),
        (operators.dequantize.default, (stored, scale, INT4, -1, 16)),
    ):
        torch.library.opcheck(operator, arguments)
