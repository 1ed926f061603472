"""Rewrite an ONNX model with narrow types (float16, bfloat16), so that it computes in float32 and rounds after each node.

onnxruntime's CPU provider has few kernels for bfloat16 (1.31: no MatMul). It computes float16 in float32 without rounding
in between (its pass InsertCastTransformer), so an overflow of float16 would not show. float32 holds every number of both
types. So each node of the rewritten model gives the result of a node that accumulates in float32, as on GPUs.

Rules
1. Every narrow type becomes float32, in inputs, outputs, weights, constants and type attributes.
2. Two Casts follow each node output that was narrow. They convert it to its narrow type, and back to float32.
3. onnx's shape inference finds the types of values. If the type of a node's output is unknown, the model cannot be
   rewritten (`UnknownElementType`).
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

_NARROW_TYPES, _FLOAT32 = (TensorProto.FLOAT16, TensorProto.BFLOAT16), TensorProto.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


class UnknownElementType(Exception):
    """The element type of a value is unknown (rule 3)."""


def has_narrow_types(model: ModelProto) -> bool:
    """Whether a narrow type occurs in the model (rule 1)."""
    return _is_narrow(model.graph)


def _is_narrow(graph: GraphProto) -> bool:
    declared = [*graph.input, *graph.output]
    return (
        any(value.type.tensor_type.elem_type in _NARROW_TYPES for value in declared)
        or any(tensor.data_type in _NARROW_TYPES for tensor in graph.initializer)
        or any(_has_narrow_type(attribute) for node in graph.node for attribute in node.attribute)
    )


def _has_narrow_type(attribute: AttributeProto) -> bool:
    if attribute.type == AttributeProto.GRAPH:
        return _is_narrow(attribute.g)
    return (
        attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW_TYPES
    ) or attribute.t.data_type in _NARROW_TYPES


def convert_to_float32(model: ModelProto) -> ModelProto:
    """Copy `model`, with float32 instead of narrow types. Raises UnknownElementType."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # InferenceError and others, for an invalid model
        raise UnknownElementType(str(error)) from error
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    _rewrite(copy.graph, inferred.graph, {})
    return copy


def _rewrite(graph: GraphProto, inferred: GraphProto, outer: dict[str, int]) -> None:
    types = dict(outer)
    for value in [*inferred.input, *inferred.output, *inferred.value_info]:
        types[value.name] = value.type.tensor_type.elem_type
    types.update((tensor.name, tensor.data_type) for tensor in inferred.initializer)
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type in _NARROW_TYPES:
            value.type.tensor_type.elem_type = _FLOAT32
    for tensor in graph.initializer:
        _convert_tensor(tensor)
    nodes = []
    for node, inferred_node in zip(list(graph.node), inferred.node, strict=True):
        for attribute, inferred_attribute in zip(node.attribute, inferred_node.attribute, strict=True):
            if attribute.type == AttributeProto.GRAPH:
                _rewrite(attribute.g, inferred_attribute.g, types)
            elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW_TYPES:
                attribute.i = _FLOAT32
            elif attribute.type == AttributeProto.TENSOR:
                _convert_tensor(attribute.t)
        nodes.append(node)
        for index, name in enumerate(node.output):
            if not name:
                continue
            if not types.get(name):
                raise UnknownElementType(f"the element type of {name} ({node.op_type}) is not known")
            if types[name] in _NARROW_TYPES:
                node.output[index] = f"{name}__exact"
                nodes.append(helper.make_node("Cast", [f"{name}__exact"], [f"{name}__rounded"], to=types[name]))
                nodes.append(helper.make_node("Cast", [f"{name}__rounded"], [name], to=_FLOAT32))
    del graph.node[:]
    graph.node.extend(nodes)


def _convert_tensor(tensor: TensorProto) -> None:
    """Convert a narrow tensor to float32. If its data are external, the runner converts them."""
    if tensor.data_type not in _NARROW_TYPES:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.data_type = _FLOAT32
        return
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
