"""The canonical form of an ONNX model: models of equal structure have equal bytes.

Rules
1. Inputs are named ``i0…``, outputs ``o0…`` and weights ``w0…``, by position. Nodes are ``n0…`` and values ``v0…``, in
   graph order, nested graphs included. Constants of the outer graph are ``c0…``, in the order of their first use.
   Constants of a nested graph are named like values. Unused weights, and unused constants of the outer graph, are left
   out. Unused inputs stay.
2. A size that is not a number is named ``d0…``. Equal size expressions have the same name. The names are numbered in the
   order of the axes: first the inputs, then the outputs, then the results of plugins.
3. Weights are initializers without data: dtype, dims, and an external location. The location is a file with the weight's
   name beside the model. So any tool can read the model with a folder of raw weights. Constants are inline.
4. There is no producer, documentation or metadata, and tensors in attributes have no names. Only the results of plugins
   have value information, because ONNX cannot infer their types. The names of graphs are fixed. Attributes are sorted by
   name. The IR version follows from the opset.
5. Each output of the model is the result of a node of the outer graph, and no two outputs are the same value. An Identity
   is inserted for an input, weight or constant that is returned, and for a value that is returned twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from trtbuild.core.model.plugins import ONNX_DOMAIN

#: The key of a node's metadata property. The property's value is the node's origin: the index of the call_function node
#: that the node came from.
ORIGIN_KEY = "trtbuild.origin"

#: Pairs: the canonical name of a node, and its origin.
Origins = tuple[tuple[str, int], ...]


@dataclass
class _Names:
    """The canonical names that the copied part of a model has, and the origins of its nodes."""

    #: Original name of a value → canonical name.
    values: dict[str, str] = field(default_factory=dict)
    node_count: int = 0
    #: The number of names ``v0…``.
    inner_value_count: int = 0
    origins: list[tuple[str, int]] = field(default_factory=list)


def canonical_model(model: onnx.ModelProto, weight_count: int, opset: int) -> tuple[onnx.ModelProto, Origins]:
    """Return a canonical copy of `model`, and the origins of the copy's nodes. The first `weight_count` inputs of
    `model` are weights."""
    source = onnx.GraphProto()
    source.CopyFrom(model.graph)
    _separate_outputs(source)
    names = _Names()
    names.values.update((value.name, f"w{index}") for index, value in enumerate(source.input[:weight_count]))
    names.values.update((value.name, f"i{index}") for index, value in enumerate(source.input[weight_count:]))
    names.values.update((value.name, f"o{index}") for index, value in enumerate(source.output))
    names_by_use = list(_read_names(source))
    constants = {tensor.name: tensor for tensor in source.initializer}
    constant_names = [name for name in dict.fromkeys(names_by_use) if name in constants]
    names.values.update((name, f"c{index}") for index, name in enumerate(constant_names))

    result = onnx.ModelProto(ir_version=_ir_version(opset))
    result.opset_import.add(domain="", version=opset)
    if any(node.domain == ONNX_DOMAIN for node in source.node):
        result.opset_import.add(domain=ONNX_DOMAIN, version=1)
    graph = result.graph
    graph.name = "partition"
    _copy_nodes(source, graph, names)
    size_names: dict[str, str] = {}
    for value in source.input[weight_count:]:
        _copy_value(value, graph.input.add(), names, size_names)
    for value in source.output:
        _copy_value(value, graph.output.add(), names, size_names)
    plugin_results = {name for node in source.node if node.domain == ONNX_DOMAIN for name in node.output}
    for value in sorted(source.value_info, key=lambda value: names.values.get(value.name, "")):
        if value.name in plugin_results:
            _copy_value(value, graph.value_info.add(), names, size_names)
    used_names = set(names_by_use)
    for value in source.input[:weight_count]:
        if value.name in used_names:
            _add_weight(value, graph.initializer.add(), names)
    for name in constant_names:
        tensor = graph.initializer.add()
        _copy_tensor(constants[name], tensor)
        tensor.name = names.values[name]
    return result, tuple(names.origins)


def _separate_outputs(graph: onnx.GraphProto) -> None:
    """Apply rule 5."""
    produced = {name for node in graph.node for name in node.output}
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | produced
    seen: set[str] = set()
    for index, value in enumerate(graph.output):
        if value.name in produced and value.name not in seen:
            seen.add(value.name)
            continue
        new_name = f"output_{index}"
        while new_name in names:
            new_name += "_"
        names.add(new_name)
        graph.node.add(op_type="Identity", input=[value.name], output=[new_name])
        value.name = new_name


def _read_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield each name that is read, in graph order. The names in a nested graph come at the place of the graph."""
    for node in graph.node:
        yield from node.input
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            if attribute.HasField("g"):
                yield from _read_names(attribute.g)
                yield from (value.name for value in attribute.g.output)


def _copy_nodes(source: onnx.GraphProto, result: onnx.GraphProto, names: _Names) -> None:
    for node in source.node:
        copy = result.node.add(op_type=node.op_type, name=f"n{names.node_count}")
        names.node_count += 1
        if node.domain:
            copy.domain = node.domain
        for entry in node.metadata_props:
            if entry.key == ORIGIN_KEY:
                names.origins.append((copy.name, int(entry.value)))
        copy.input.extend(names.values[name] if name else "" for name in node.input)
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            _copy_attribute(attribute, copy.attribute.add(), names)
        copy.output.extend(_canonical_name(name, names) for name in node.output)


def _canonical_name(name: str, names: _Names) -> str:
    if not name:
        return ""
    if name not in names.values:
        names.values[name] = f"v{names.inner_value_count}"
        names.inner_value_count += 1
    return names.values[name]


def _copy_attribute(source: onnx.AttributeProto, result: onnx.AttributeProto, names: _Names) -> None:
    if source.type in (onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSORS):
        raise ValueError(f"attribute {source.name!r} holds a list of graphs or tensors")
    if source.type == onnx.AttributeProto.GRAPH:
        result.name, result.type = source.name, source.type
        graph = result.g
        graph.name = "nested"
        for value in source.g.input:
            graph.input.add(name=_canonical_name(value.name, names)).type.CopyFrom(_without_size_names(value.type))
        for tensor in source.g.initializer:
            copy = graph.initializer.add()
            _copy_tensor(tensor, copy)
            copy.name = _canonical_name(tensor.name, names)
        _copy_nodes(source.g, graph, names)
        for value in source.g.output:
            graph.output.add(name=names.values[value.name]).type.CopyFrom(_without_size_names(value.type))
        return
    result.CopyFrom(source)
    result.ClearField("doc_string")
    if source.type == onnx.AttributeProto.TENSOR:
        result.ClearField("t")
        _copy_tensor(source.t, result.t)


def _without_size_names(source: onnx.TypeProto) -> onnx.TypeProto:
    """Copy a type without the names of its sizes. The rank stays, because onnxruntime checks that a loop counter is a
    scalar."""
    result = onnx.TypeProto()
    result.CopyFrom(source)
    result.ClearField("denotation")
    for size in result.tensor_type.shape.dim if result.HasField("tensor_type") else ():
        size.ClearField("denotation")
        size.ClearField("dim_param")
    return result


def _copy_tensor(source: onnx.TensorProto, result: onnx.TensorProto) -> None:
    result.CopyFrom(source)
    for name in ("name", "doc_string", "metadata_props"):
        result.ClearField(name)


def _copy_value(
    source: onnx.ValueInfoProto, result: onnx.ValueInfoProto, names: _Names, size_names: dict[str, str]
) -> None:
    result.name = names.values[source.name]
    tensor = source.type.tensor_type
    result.type.tensor_type.elem_type = tensor.elem_type
    shape = result.type.tensor_type.shape
    shape.SetInParent()
    for size in tensor.shape.dim:
        copy = shape.dim.add()
        if size.HasField("dim_value"):
            copy.dim_value = size.dim_value
        elif size.dim_param:
            copy.dim_param = size_names.setdefault(size.dim_param, f"d{len(size_names)}")


def _add_weight(source: onnx.ValueInfoProto, result: onnx.TensorProto, names: _Names) -> None:
    result.name = names.values[source.name]
    result.data_type = source.type.tensor_type.elem_type
    result.dims.extend(size.dim_value for size in source.type.tensor_type.shape.dim)
    result.data_location = onnx.TensorProto.EXTERNAL
    result.external_data.add(key="location", value=result.name)


def _ir_version(opset: int) -> int:
    # The oldest IR version from 8 on that has the opset:
    # https://github.com/onnx/onnx/blob/main/docs/Versioning.md#released-versions
    # Opset 23 belongs to IR version 11, but TensorRT-RTX 1.7.1 and onnxruntime also read it in models of IR version 10.
    return 8 if opset <= 18 else 9 if opset <= 20 else 10
