"""Change the Resize operators of an ONNX model for which onnx's shape inference finds too small a size.

A Resize multiplies a size by a scale and rounds down. onnxruntime and TensorRT multiply in float32, so 5 times 1.4 is 7.
onnx's shape inference multiplies in float64. The scale is the float32 number for 1.4, which is a little smaller than 1.4,
so inference finds 6.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.shape_inference


def with_float32_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` if all its Resize scales are integers, otherwise a copy for shape inference. In it, scales that would give
    too small a size are a little larger, so inference finds the right sizes. The operators are changed one by one,
    because each changes the sizes of later ones. Nested graphs are not changed."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    resizes = {
        node.output[0]: onnx.numpy_helper.to_array(constants[node.input[2]])
        for node in model.graph.node
        if node.op_type == "Resize" and len(node.input) == 3 and node.input[2] in constants
    }
    if all(np.array_equal(scales, np.rint(scales)) for scales in resizes.values()):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    while _change_first(copy, resizes):
        pass
    return copy


def _change_first(model: onnx.ModelProto, resizes: dict[str, np.ndarray]) -> bool:
    """Change the scales of the first Resize that needs it, and take it out of `resizes`. Returns whether it changed one."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]  # 0 if it is not known
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    for node in model.graph.node:
        scales, sizes = resizes.get(node.output[0]), shapes.get(node.input[0] if node.input else "", [])
        if scales is None or len(scales) != len(sizes):
            continue
        results = [math.floor(scale * np.float32(size)) for scale, size in zip(scales, sizes, strict=True)]
        if results != [math.floor(float(scale) * size) for scale, size in zip(scales, sizes, strict=True)]:
            del resizes[node.output[0]]
            larger = [
                (result + 0.5) / size if size else scale
                for result, size, scale in zip(results, sizes, scales, strict=True)
            ]
            node.input[2] = f"{node.output[0]}.scales"
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(larger), node.input[2]))
            return True
    return False
