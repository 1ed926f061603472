"""Find the precision of each output of an ONNX model, by the rules of `verify.precisions`.

The model is the result of a convert step: its inputs are called ``i0``, ``i1`` …, and its outputs ``o0``, ``o1`` ….
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, GraphProto, TensorProto

from trtbuild.core.model.verification import RoundedType, coarsest_precision
from trtbuild.stages.verify.precisions import precision_of_dtype

_DTYPE_NAMES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
#: Operators that round to the type of their zero point or to ``output_dtype``, by default to uint8.
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
#: ONNX's number of a type that a quantizer rounds to → its name here. All other types count as int8: for example, uint8 has
#: as many steps as int8.
_QUANTIZER_TYPES: Mapping[int, RoundedType] = {
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
    TensorProto.FLOAT8E5M2: "float8e5m2",
    TensorProto.FLOAT4E2M1: "float4e2m1",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "int4",
}
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def onnx_precisions(data: bytes, inputs: Sequence[RoundedType], count: int) -> list[RoundedType]:
    """Return the precision of each of the first `count` outputs. `inputs` are the precisions of the inputs.

    A value without a type in the file counts as float32."""
    graph = onnx.ModelProto.FromString(data).graph
    precisions = {
        value.name: _precision_of(value.type.tensor_type.elem_type) for value in (*graph.value_info, *graph.output)
    }
    for value in graph.input:
        input_precision = inputs[int(value.name[1:])] if value.name[1:].isdigit() else "float32"
        precisions[value.name] = coarsest_precision([_precision_of(value.type.tensor_type.elem_type), input_precision])
    _add_precisions(graph, precisions)
    return [precisions.get(f"o{number}", "float32") for number in range(count)]


def _add_precisions(graph: GraphProto, precisions: dict[str, RoundedType]) -> RoundedType:
    """Add the precisions of a graph's values to `precisions`. Returns the coarsest of them.

    `precisions` maps the name of a value to its precision, and already has the values of the enclosing graphs."""
    initializers = {tensor.name: _precision_of(tensor.data_type) for tensor in graph.initializer}
    precisions.update(initializers)
    results = [*initializers.values()]
    for node in graph.node:  # in topological order
        nested_precisions = [_add_precisions(nested, dict(precisions)) for nested in _graphs(node)]
        attribute_precisions = [_precision_of(type_) for type_ in _attribute_types(node)]
        if node.op_type in _QUANTIZERS:
            attribute_precisions = [_quantizer_type(node, graph)]
        input_precisions = (
            [] if node.op_type in ("Shape", "Size") else [precisions.get(name, "float32") for name in node.input]
        )
        for name in node.output:
            precisions[name] = coarsest_precision(
                [precisions.get(name, "float32"), *nested_precisions, *attribute_precisions, *input_precisions]
            )
            results.append(precisions[name])
    return coarsest_precision(results)


def _quantizer_type(node: onnx.NodeProto, graph: GraphProto) -> RoundedType:
    """Return the type that a quantizer rounds to; int8 for a quantizer of a weight (`verify.precisions`, rule 7)."""
    if any(tensor.name == node.input[0] for tensor in graph.initializer):
        return "int8"
    zero_points = node.input[2:]
    types = [tensor.data_type for tensor in graph.initializer if tensor.name in zero_points]
    for constant in graph.node:
        if constant.op_type == "Constant" and constant.output[0] in zero_points:
            types += _attribute_types(constant)
    return coarsest_precision(
        ["int8", *(_QUANTIZER_TYPES.get(type_, "int8") for type_ in (*types, *_attribute_types(node)))]
    )


def _precision_of(type_: int) -> RoundedType:
    name = TensorProto.DataType.Name(type_) if type_ in TensorProto.DataType.values() else ""
    return precision_of_dtype(name.lower() if name.startswith("FLOAT8") else _DTYPE_NAMES.get(type_, ""))


def _graphs(node: onnx.NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _attribute_types(node: onnx.NodeProto) -> Iterator[int]:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT:
            yield attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.t.data_type
