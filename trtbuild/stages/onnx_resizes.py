"""Change the Resize and Upsample operators of an ONNX model for which onnx's shape inference finds too small a size.

Such an operator multiplies a size by a scale and rounds down. onnxruntime and TensorRT multiply in float32, so 5 times 1.4
is 7. onnx's shape inference multiplies in float64. The scale is the float32 number for 1.4, which is a little smaller than
1.4, so inference finds 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.shape_inference

_OPERATORS = ("Resize", "Upsample")


def with_float32_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` if all its constant scales are integers, otherwise a copy for shape inference. In it, scales that would give
    too small a size are a little larger, so inference finds the right sizes. The operators are changed one by one,
    because each changes the sizes of later ones. Nested graphs are not changed."""
    constants = _constants(model.graph)
    resizes = {
        node.output[0]: scales
        for node in model.graph.node
        if node.op_type in _OPERATORS and (scales := _scales(node, constants)) is not None
    }
    if all(np.array_equal(scales, np.rint(scales)) for scales in resizes.values()):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    while _change_first(copy, resizes):
        pass
    return copy


def _constants(graph: onnx.GraphProto) -> Mapping[str, np.ndarray]:
    """The numbers of the float initializers and the Constant nodes that some Resize or Upsample reads."""
    read_names = {name for node in graph.node if node.op_type in _OPERATORS for name in node.input}
    constants: dict[str, np.ndarray] = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name in read_names and tensor.data_type == onnx.TensorProto.FLOAT
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in read_names:
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.FLOAT:
                    constants[node.output[0]] = onnx.numpy_helper.to_array(attribute.t)
                elif attribute.name == "value_floats":
                    constants[node.output[0]] = np.array(attribute.floats, np.float32)
    return constants


def _scales_position(node: onnx.NodeProto) -> int:
    """The position of the input with the scales. In opset 10, and in Upsample, there is no input before them."""
    return min(len(node.input) - 1, 2)


def _scales(node: onnx.NodeProto, constants: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The scales of a Resize or Upsample; None if they are not constant. Before opset 9, they are an attribute."""
    for attribute in node.attribute:
        if attribute.name == "scales":
            scales: np.ndarray = np.array(attribute.floats, np.float32)
            return scales
    return constants.get(node.input[_scales_position(node)])


def _change_first(model: onnx.ModelProto, resizes: dict[str, np.ndarray]) -> bool:
    """Change the scales of the first operator that needs it, and take it out of `resizes`. Returns whether it changed
    one."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]  # 0 if it is not known
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    for node in model.graph.node:
        scales, shape = resizes.get(node.output[0]), shapes.get(node.input[0] if node.input else "", [])
        axes = next((list(entry.ints) for entry in node.attribute if entry.name == "axes"), None) or range(len(shape))
        if scales is None or len(scales) != len(axes) or not all(-len(shape) <= axis < len(shape) for axis in axes):
            continue
        sizes = [shape[axis] for axis in axes]
        results = [math.floor(scale * np.float32(size)) for scale, size in zip(scales, sizes, strict=True)]
        if results != [math.floor(float(scale) * size) for scale, size in zip(scales, sizes, strict=True)]:
            del resizes[node.output[0]]
            larger = [
                (result + 0.5) / size if size else scale
                for result, size, scale in zip(results, sizes, scales, strict=True)
            ]
            _set_scales(model.graph, node, np.array(larger, np.float32))
            return True
    return False


def _set_scales(graph: onnx.GraphProto, node: onnx.NodeProto, scales: np.ndarray) -> None:
    for attribute in node.attribute:
        if attribute.name == "scales":
            attribute.floats[:] = scales.tolist()
            return
    name = f"{node.output[0]}.scales"
    node.input[_scales_position(node)] = name
    graph.initializer.append(onnx.numpy_helper.from_array(scales, name))
