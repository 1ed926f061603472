"""Count the quantized weights and matrix products of an ONNX model."""

from __future__ import annotations

from trtbuild.core.engines.float_fallbacks import QuantizedParts
from trtbuild.toolchain.onnx_files.onnx_outline import Outline

_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
#: Operators that only move the elements of their first operand, or cast them to another floating type.
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")


def quantized_parts(model: Outline) -> QuantizedParts:
    """Count the quantized weights, and the products of two quantized operands. Weights have external data. Other
    initializers are small constants. A weight with fewer than two axes, such as a bias, is not counted."""
    #: Value that is computed from initializers alone → the largest number of axes of a weight among them.
    ranks = {name: 0 for name, _ in model.initializers} | {entry.name: len(entry.shape) for entry in model.weights}
    dequantized: set[str] = set()
    weights = products = 0
    for node in model.nodes:  # in topological order
        operands = [name for name in node.inputs if name]
        if operands and all(name in ranks for name in operands):
            ranks.update(dict.fromkeys(node.outputs, max(ranks[name] for name in operands)))
        if node.operator == "DequantizeLinear":
            dequantized.update(node.outputs)
            weights += ranks.get(node.inputs[0], 0) >= 2
        elif node.operator in _MOVES and operands and operands[0] in dequantized:
            dequantized.update(node.outputs)
        elif node.operator in _PRODUCTS:
            products += len(operands) > 1 and dequantized.issuperset(operands[:2])
    return QuantizedParts(weights, products)
