"""The quantized weights and matrix products of an ONNX model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h

from tests.toolchain.conftest import model
from trtbuild.core.engines.float_fallbacks import QuantizedParts
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline
from trtbuild.toolchain.onnx_files.quantized_parts import quantized_parts

FLOATS, INTEGERS = np.ones((8, 8), np.float32), np.ones((8, 8), np.int8)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node. Spaces separate the names of `inputs`."""
    return h.make_node(operator, inputs.split(), [output], **attributes)


def quantizer(value: str, name: str) -> list[onnx.NodeProto]:
    """Nodes that quantize and dequantize `value` to `name`. The constants s and z are the scale and the zero point."""
    return [node("QuantizeLinear", f"{value} s z", f"{name}_q"), node("DequantizeLinear", f"{name}_q s z", name)]


@pytest.mark.parametrize(
    ("weight", "nodes", "expected"),
    [
        (FLOATS, [node("MatMul", "i0 w0", "o0")], QuantizedParts(0, 0)),
        (FLOATS, [*quantizer("i0", "x"), node("MatMul", "x w0", "o0")], QuantizedParts(0, 0)),
        (INTEGERS, [node("DequantizeLinear", "w0 s", "w"), node("MatMul", "i0 w", "o0")], QuantizedParts(1, 0)),
        (FLOATS, [*quantizer("i0", "x"), *quantizer("w0", "w"), node("MatMul", "x w", "o0")], QuantizedParts(1, 1)),
        (
            FLOATS,
            [
                *quantizer("i0", "x"),
                node("Transpose", "w0", "t"),
                *quantizer("t", "w"),
                node("Transpose", "w", "u"),
                node("Gemm", "x u", "o0"),
            ],
            QuantizedParts(1, 1),
        ),
        (FLOATS, [*quantizer("i0", "x"), node("MatMul", "x x", "o0")], QuantizedParts(0, 1)),
        # a quantized vector is not a quantized weight
        (np.ones(8, np.int8), [node("DequantizeLinear", "w0 s", "w"), node("Add", "i0 w", "o0")], QuantizedParts(0, 0)),
    ],
)
def test_counts_quantized_weights_and_products(weight: np.ndarray, nodes: list[Any], expected: QuantizedParts) -> None:
    constants = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    assert quantized_parts(read_outline(model(nodes, [("FLOAT", (8, 8))], ["FLOAT"], [weight], constants))) == expected


@pytest.mark.parametrize(("parts", "is_true"), [((0, 0), False), ((1, 0), True), ((0, 1), True)])
def test_quantized_parts_are_false_only_without_a_part(parts: tuple[int, int], is_true: bool) -> None:
    assert bool(QuantizedParts(*parts)) is is_true
