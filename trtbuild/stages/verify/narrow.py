"""Rewrite float16 and bfloat16 for a runner without them: float32, rounded to the narrow type after each node.

onnxruntime's CPU provider has few kernels for bfloat16 (1.31: no MatMul). It computes float16 in float32 without
rounding in between (InsertCastTransformer), so an overflow of float16 would not show. float32 holds every number of
both types. So the result equals that of a node that accumulates in float32, as GPUs do.

Rules
1. Every tensor of a narrow type becomes one of float32: inputs, outputs, weights, constants, type attributes.
2. Every value that was narrow goes through a Cast to its type and back behind the node that makes it.
3. The types of values are those of onnx's shape inference. A model with a value of unknown type is refused.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

_NARROW, _F32 = (TensorProto.FLOAT16, TensorProto.BFLOAT16), TensorProto.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


class Untyped(Exception):
    """The element type of a value is not known."""


def is_narrow(model: ModelProto) -> bool:
    """Whether anything in the outer graph, or a type attribute, has a narrow type."""
    graph = model.graph
    declared = [*graph.input, *graph.output]
    return (
        any(value.type.tensor_type.elem_type in _NARROW for value in declared)
        or any(tensor.data_type in _NARROW for tensor in graph.initializer)
        or any(_names_it(attribute) for node in graph.node for attribute in node.attribute)
    )


def _names_it(attribute: AttributeProto) -> bool:
    if attribute.type == AttributeProto.GRAPH:
        return any(_names_it(inner) for node in attribute.g.node for inner in node.attribute)
    return (attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW) or attribute.t.data_type in _NARROW


def in_float32(model: ModelProto) -> ModelProto:
    """Copy `model`, with float32 instead of narrow types (rules 1, 2). Raises Untyped."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # InferenceError and others, for an invalid model
        raise Untyped(str(error)) from error
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
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = _F32
    for tensor in graph.initializer:
        _retype(tensor)
    nodes = []
    for node, known in zip(list(graph.node), inferred.node, strict=True):
        for attribute, inner in zip(node.attribute, known.attribute, strict=True):
            if attribute.type == AttributeProto.GRAPH:
                _rewrite(attribute.g, inner.g, types)
            elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = _F32
            elif attribute.type == AttributeProto.TENSOR:
                _retype(attribute.t)
        nodes.append(node)
        for index, name in enumerate(node.output):
            if not name:
                continue
            if not types.get(name):
                raise Untyped(f"the element type of {name} ({node.op_type}) is not known")
            if types[name] in _NARROW:
                node.output[index] = f"{name}__exact"
                nodes.append(helper.make_node("Cast", [f"{name}__exact"], [f"{name}__rounded"], to=types[name]))
                nodes.append(helper.make_node("Cast", [f"{name}__rounded"], [name], to=_F32))
    del graph.node[:]
    graph.node.extend(nodes)


def _retype(tensor: TensorProto) -> None:
    """Make a narrow tensor float32. External data are converted by the reader of that data."""
    if tensor.data_type not in _NARROW:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.data_type = _F32
        return
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
