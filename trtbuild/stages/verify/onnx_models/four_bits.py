"""Rewrite weights of 4 bits for onnxruntime: release 1.31 reads external weights of whole bytes only, and has no float4.

int4 and float4e2m1 become int8. The numbers of float4e2m1 are multiples of 1/2, so they are doubled, and their scales are
halved. Both changes are exact: the rewritten model gives the same numbers.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

#: The types of 4 bits → the number of each code. float4e2m1's numbers are doubled.
_NUMBERS = {
    TensorProto.INT4: np.array([*range(8), *range(-8, 0)], np.int8),
    TensorProto.FLOAT4E2M1: np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8),
}


def external_types(model: ModelProto) -> dict[str, int]:
    """The names of a model's external weights of 4 bits, and their types."""
    return {
        tensor.name: tensor.data_type
        for tensor in model.graph.initializer
        if tensor.data_type in _NUMBERS and tensor.data_location == TensorProto.EXTERNAL
    }


def convert_to_int8(model: ModelProto) -> ModelProto:
    """Copy `model`, with int8 instead of its external weights of 4 bits. `unpacked` gives their numbers."""
    types = external_types(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in types:
            tensor.data_type = TensorProto.INT8
    nodes = []
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear" and types.get(node.input[0]) == TensorProto.FLOAT4E2M1:
            half = f"{node.name}__half"
            nodes.append(onnx.helper.make_node("Constant", [], [half], value_float=0.5))
            nodes.append(onnx.helper.make_node("Mul", [node.input[1], half], [f"{node.name}__scale"]))
            node.input[1] = f"{node.name}__scale"
        nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    copy.graph.ClearField("node")
    copy.graph.node.extend(nodes)
    return copy


def unpacked(data: np.ndarray, element: int, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a weight for the rewritten model. `data` are the bytes of the weight, `element` is its type."""
    codes = np.stack([data & 15, data >> 4], -1).reshape(-1)[: int(np.prod(shape))]  # the first number has the low bits
    numbers: np.ndarray = _NUMBERS[element][codes].reshape(shape)
    return numbers
