"""Rewrite weights of 4 bits as int8 for onnxruntime.

onnxruntime 1.31 reads an external weight only if each number has at least one byte. It has no float4, either. The numbers
of float4e2m1 are multiples of 1/2, so they are doubled, and their scales are halved. This is exact, so the rewritten model
gives the same numbers.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

#: A type of 4 bits → the number that each code from 0 to 15 stands for. The numbers of float4e2m1 are doubled.
_NUMBERS = {
    TensorProto.INT4: np.array([*range(8), *range(-8, 0)], np.int8),
    TensorProto.FLOAT4E2M1: np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8),
}


def external_types(model: ModelProto) -> dict[str, int]:
    """Return the name of each external weight of 4 bits → its type."""
    return {
        tensor.name: tensor.data_type
        for tensor in model.graph.initializer
        if tensor.data_type in _NUMBERS and tensor.data_location == TensorProto.EXTERNAL
    }


def convert_to_int8(model: ModelProto) -> ModelProto:
    """Copy `model`, with int8 instead of its external weights of 4 bits."""
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
    """Return the numbers of a weight for the rewritten model. `data` are its bytes, and `element` is its type."""
    codes = np.stack([data & 15, data >> 4], -1).reshape(-1)[: int(np.prod(shape))]  # the first number has the low bits
    numbers: np.ndarray = _NUMBERS[element][codes].reshape(shape)
    return numbers
