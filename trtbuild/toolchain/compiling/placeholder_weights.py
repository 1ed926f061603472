"""Make placeholders for weights, because the partitioner asks the parser before the weights are read.

All values are 0, except the scales of quantizers. Scales are 1, because the parser refuses a scale that is not positive.

To save memory, all weights of zeros are windows of one block. All scales of one type are
windows of a block of ones. Each weight has its own address, because TensorRT identifies weights by their address.
"""

from __future__ import annotations

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_outline import ExternalWeight, Outline

#: Bytes between the starts of two windows: enough for the alignment of every element type.
_STEP = 64
_QUANTIZING = ("QuantizeLinear", "DequantizeLinear")

#: onnx.TensorProto.DataType → the bytes of the number 1, for the types that a scale may have.
_ONES = {1: b"\x00\x00\x80\x3f", 10: b"\x00\x3c", 16: b"\x80\x3f"}


def placeholder_weights(model: Outline) -> dict[str, memoryview]:
    """Return a placeholder for each external weight of `model`: name → data."""
    patterns = quantizer_scales(model)
    groups: dict[bytes, list[ExternalWeight]] = {}
    for weight in model.weights:
        groups.setdefault(patterns.get(weight.name, b""), []).append(weight)
    data: dict[str, memoryview] = {}
    for pattern, weights in groups.items():
        block = _filled_block(max(weight.size_bytes for weight in weights) + _STEP * len(weights), pattern)
        for number, weight in enumerate(weights):
            data[weight.name] = block[_STEP * number : _STEP * number + weight.size_bytes]
    return data


def quantizer_scales(model: Outline) -> dict[str, bytes]:
    """Return the external weights that are scales of quantizers: name → the bytes of the number 1 in their type."""
    scales = {node.inputs[1] for node in model.nodes if node.operator in _QUANTIZING and len(node.inputs) > 1}
    types = dict(model.initializers)
    return {
        weight.name: _ONES[types[weight.name]]
        for weight in model.weights
        if weight.name in scales and types[weight.name] in _ONES
    }


def _filled_block(size_bytes: int, pattern: bytes) -> memoryview:
    if not pattern:
        return np.zeros(size_bytes, dtype=np.uint8).data
    return memoryview(bytearray(pattern * -(-size_bytes // len(pattern))))
