"""Find the precision of each output of an ONNX model (`precisions`). The model is canonical: inputs ``i0…``, outputs
``o0…``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import AttributeProto, GraphProto, TensorProto

from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import coarsest
from trtbuild.stages.verify.precisions import of_dtype

_TYPES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def onnx_precisions(data: bytes, inputs: Sequence[Precision], count: int) -> list[Precision]:
    """The precision of each of the first `count` outputs; `inputs` are those of its inputs. A value without a type in
    the file has the precision of the values that it was computed from."""
    graph = onnx.ModelProto.FromString(data).graph
    found = {value.name: _named(value.type.tensor_type.elem_type) for value in (*graph.value_info, *graph.output)}
    for value in graph.input:
        given = inputs[int(value.name[1:])] if value.name[1:].isdigit() else "float32"
        found[value.name] = coarsest([_named(value.type.tensor_type.elem_type), given])
    _walk(graph, found)
    return [found.get(f"o{number}", "float32") for number in range(count)]


def _walk(graph: GraphProto, found: dict[str, Precision]) -> Precision:
    """Add the precisions of a graph's values to `found`, which has those of outer values. Returns the coarsest one."""
    held = {tensor.name: _named(tensor.data_type) for tensor in graph.initializer}
    found.update(held)
    made = [*held.values()]
    for node in graph.node:  # in topological order
        inside = [_walk(inner, dict(found)) for inner in _graphs(node)]
        said = [_named(type_) for type_ in _types(node)]
        before = [] if node.op_type in ("Shape", "Size") else [found.get(name, "float32") for name in node.input]
        for name in node.output:
            found[name] = coarsest([found.get(name, "float32"), *inside, *said, *before])
            made.append(found[name])
    return coarsest(made)


def _named(type_: int) -> Precision:
    name = TensorProto.DataType.Name(type_) if type_ in TensorProto.DataType.values() else ""
    return of_dtype(name.lower() if name.startswith("FLOAT8") else _TYPES.get(type_, ""))


def _graphs(node: onnx.NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _types(node: onnx.NodeProto) -> Iterator[int]:
    """The types in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT:
            yield attribute.i
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.t.data_type
