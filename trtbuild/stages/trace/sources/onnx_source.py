"""``onnx:`` sources: read an ONNX file and its external data, check the graph, and give its inputs the manifest's shapes.

Rules
1. Only the trace reads the file. The file and the files of its external data are dependencies. The keys of convert
   and engine steps do not depend on names of nodes and values, on documentation and metadata, or on the form in which
   numbers are stored.
2. Inputs are matched by name, and get the manifest's shapes. A dynamic size becomes the manifest's symbol or number. A
   fixed size must be equal to the manifest's size. Outputs keep their names and their order.
3. Large initializers are weights (`onnx_weights`).
4. If ONNX's shape inference does not find the size of an output, this size counts as a size that depends on data. If
   inference does not find the number of axes either, it is taken from the file, and the engine step compares it with the
   network.
5. Only ONNX's own operators are supported, and operators of Model Optimizer that they can replace
   (`onnx_trt_domain`). Functions that the model defines are inlined.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import torch

from trtbuild.core.model.shapes import SymbolAxis
from trtbuild.core.partition.partitions import TensorType
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import SourceError
from trtbuild.stages.onnx_graphs import all_nodes
from trtbuild.stages.onnx_pools import drop_ceil_modes
from trtbuild.stages.onnx_resizes import with_float32_sizes
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.sources.declared_inputs import (
    graph_interface,
    refuse_different_input,
    refuse_different_input_names,
    size_expression,
)
from trtbuild.stages.trace.sources.onnx_quantization import dequantize_biases, refuse_unsupported_quantization
from trtbuild.stages.trace.sources.onnx_trt_domain import replace_trt_operators
from trtbuild.stages.trace.sources.onnx_weights import (
    all_tensors,
    dtype_name,
    lift_constants,
    location_of,
    numbers_in,
    take_weights,
)
from trtbuild.stages.trace.sources.reading import SourceReader
from trtbuild.stages.trace.sources.source_graph import SourceGraph
from trtbuild.stages.trace.user_code.frames import first_lines

_ONNX_DOMAINS = ("", "ai.onnx")
_ELEMENTS = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


class OnnxSource(SourceReader):
    """Reads an ``onnx:`` source."""

    def read(self) -> SourceGraph:
        """The model of an ONNX file. Raises SourceError."""
        job, path = self.job, self.path
        model = _load_model(path, job)
        graph = model.graph
        replace_trt_operators(model, job)
        _name_nodes(graph)
        _refuse_unsupported(model, job)
        model.ClearField("functions")  # no node calls those that are left, and the checker may refuse them
        # compare the inputs with the manifest
        initializers = {tensor.name for tensor in graph.initializer}
        # files before version 4 of ONNX's IR also list weights as inputs
        inputs = {value.name: value for value in graph.input if value.name not in initializers}
        refuse_different_input_names(list(inputs), job)
        for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True):
            _refuse_different_value(inputs[entry.name], entry, shape, job)
        # take the weights out of the graph, and make them its first inputs
        read_numbers = numbers_in(path.parent, job)
        refuse_unsupported_quantization(graph, read_numbers, job)
        lift_constants(graph)
        dequantize_biases(graph, read_numbers, job)
        weights = take_weights(graph, path.parent, job)
        graph.ClearField("input")
        model.ir_version = max(model.ir_version, 4)  # before version 4, each initializer must be an input
        for name, value in weights.items():
            graph.input.append(onnx.helper.make_tensor_value_info(name, _element_type(value), list(value.shape)))
        graph.input.extend(
            _with_sizes(inputs[entry.name], shape) for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)
        )
        # describe the inputs, the outputs and the weights
        outputs = _infer_outputs(model, job)
        input_types = [
            TensorType(entry.dtype, tuple(size_expression(axis, job) for axis in shape))
            for entry, shape in zip(job.inputs, job.shapes.shapes, strict=True)
        ]
        output_entries = [(value.name, dtype_name(value.type.tensor_type.elem_type), sizes) for value, sizes in outputs]
        weight_entries = [
            {
                "name": name,
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "persistent": True,
            }
            for name, value in weights.items()
        ]
        blob_arguments = (model, len(weights), input_types, [sizes for _, sizes in outputs], job.shapes.example_shapes)
        return self.make_graph(
            blob_arguments, graph_interface(job, weight_entries, output_entries), list(enumerate(weights.values()))
        )


def _load_model(path: Path, job: TraceJob) -> onnx.ModelProto:
    place, target = job.place("source"), job.source.target
    if not path.is_file():
        raise SourceError(f"{target} does not exist", code="source", **place)
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise SourceError(
            f"{target} is not an ONNX model: {first_lines(str(error), 1)}",
            code="source",
            hint="write it with torch.onnx.export or onnx.save",
            **place,
        ) from error
    _write_default_domain(model)
    if model.functions:
        _write_function_defaults(model, job)
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # for example a function that calls itself
            raise SourceError(
                f"the functions of {target} cannot be inlined: {first_lines(str(error), 1)}", code="onnx", **place
            ) from error
    _write_default_axes(model.graph)
    for tensor in all_tensors(model.graph):
        if tensor.data_type not in _ELEMENTS:
            raise SourceError(
                f"{target} has the tensor {tensor.name!r} of an element type that onnx {onnx.__version__} does not know: "
                f"{tensor.data_type}",
                code="source",
                **place,
            )
        location = location_of(tensor)
        if location is not None and not (path.parent / location).is_file():
            raise SourceError(
                f"{target} keeps the data of {tensor.name!r} in {location!r}, which is not in its folder",
                code="source",
                hint="copy the file's external data to the same folder",
                **place,
            )
    return model


def _write_default_domain(model: onnx.ModelProto) -> None:
    """Write the empty name of ONNX's own domain instead of ``ai.onnx``, in place. Both names mean the same, but onnx's
    checker and inference know only the empty one."""
    for body in (model, *model.functions):
        versions = {entry.version for entry in body.opset_import if entry.domain in _ONNX_DOMAINS}
        others = [entry for entry in body.opset_import if entry.domain not in _ONNX_DOMAINS]
        if len(versions) == 1:  # with two versions, the checker refuses the nodes of the second one
            others.insert(0, onnx.helper.make_opsetid("", versions.pop()))
            del body.opset_import[:]
            body.opset_import.extend(others)
            for node in all_nodes(body.graph if isinstance(body, onnx.ModelProto) else body):
                node.domain = "" if node.domain in _ONNX_DOMAINS else node.domain


def _write_function_defaults(model: onnx.ModelProto, job: TraceJob) -> None:
    """Give each call of a function the attributes for which the function has defaults. onnx's inliner ignores defaults.

    Raises SourceError if a function F passes its own attribute to a function G, and only G has a default for it. If a
    caller of F does not give the attribute, the default of G is right, but the inliner drops the attribute."""
    defaults = {(each.domain, each.name, each.overload): each.attribute_proto for each in model.functions}
    for body in (model.graph, *model.functions):
        maybe_missing = set(body.attribute) if isinstance(body, onnx.FunctionProto) else set()
        for node in all_nodes(body):
            given = {attribute.name: attribute.ref_attr_name for attribute in node.attribute}
            for default in defaults.get((node.domain, node.op_type, node.overload), ()):
                if default.name not in given:
                    node.attribute.append(default)
                elif given[default.name] in maybe_missing:
                    raise SourceError(
                        f"the function {body.name} of {job.source.target} passes its attribute {given[default.name]!r} to "
                        f"{node.op_type}, and only {node.op_type} has a default for it",
                        code="onnx",
                        hint=f"give {body.name} a default for this attribute",
                        **job.place("source"),
                    )


def _write_default_axes(graph: onnx.GraphProto) -> None:
    """Give each MeanVarianceNormalization without axes those of ONNX, because shape inference fails without them."""
    for node in all_nodes(graph):
        if node.op_type == "MeanVarianceNormalization" and node.domain in _ONNX_DOMAINS and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def _refuse_unsupported(model: onnx.ModelProto, job: TraceJob) -> None:
    place = job.place("source")
    functions = {(function.domain, function.name) for function in model.functions}  # those that are not inlined
    for node in all_nodes(model.graph):
        name = f"node {node.name!r}" if node.name else "a node of a nested graph"  # `_name_nodes` leaves these unnamed
        if (node.domain, node.op_type) in functions:
            raise SourceError(
                f"{name} of {job.source.target} calls the function {node.domain}.{node.op_type}, which has another version "
                "of ONNX's operators than the model",
                code="onnx",
                hint="export the function with the opset of the model",
                **place,
            )
        if node.domain not in _ONNX_DOMAINS:
            raise SourceError(
                f"{name} of {job.source.target} is {node.domain}.{node.op_type}, but only ONNX's own operators "
                "can be built",
                code="onnx",
                hint="export the model without operators of other domains",
                **place,
            )
        if any(a.type in (onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSORS) for a in node.attribute):
            raise SourceError(
                f"{name} of {job.source.target} has a list of graphs or tensors as an attribute",
                code="onnx",
                **place,
            )
    if model.graph.sparse_initializer:
        raise SourceError(
            f"{job.source.target} has sparse initializers", code="onnx", hint="store them as dense tensors", **place
        )
    initializer_names: set[str] = set()
    for tensor in model.graph.initializer:
        if tensor.name in initializer_names:
            raise SourceError(
                f"{job.source.target} has two initializers with the name {tensor.name!r}",
                code="onnx",
                hint="give each initializer its own name",
                **place,
            )
        initializer_names.add(tensor.name)
    for value in [*model.graph.input, *model.graph.output]:
        if not value.type.HasField("tensor_type"):
            raise SourceError(
                f"{value.name!r} of {job.source.target} is not a tensor",
                code="onnx",
                hint="engines take tensors",
                **place,
            )
    names = [value.name for value in model.graph.output]
    input_names = {entry.name for entry in job.inputs}
    for name in names:
        if names.count(name) > 1 or name in input_names:
            raise SourceError(
                f"output {name!r} of {job.source.target} has the name of another input or output",
                code="onnx",
                hint="give it another name by an Identity",
                **place,
            )


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give each node without a name one for messages and ``names.json``: its operator and its index. Nested graphs stay as
    they are."""
    for number, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{number}"


def _refuse_different_value(value: onnx.ValueInfoProto, entry: Any, shape: Any, job: TraceJob) -> None:
    tensor = value.type.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if tensor.HasField("shape"):
        # some exporters write -1 for a dynamic size
        sizes = [
            size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None for size in tensor.shape.dim
        ]
    else:
        sizes = [None] * len(shape)
    refuse_different_input(entry, shape, dtype, sizes, job)


def _with_sizes(value: onnx.ValueInfoProto, shape: Any) -> onnx.ValueInfoProto:
    """Make an input with the name and element type of `value`, and the manifest's shape."""
    sizes = [_size_name(axis.symbol) if isinstance(axis, SymbolAxis) else axis for axis in shape]
    return onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, sizes)


def _size_name(symbol: int) -> str:
    """The name of a symbol in the graph. ONNX files do not contain such names."""
    return f"trtbuild:symbol:{symbol}"


def _infer_outputs(model: onnx.ModelProto, job: TraceJob) -> list[tuple[onnx.ValueInfoProto, list[Expression]]]:
    """Check a model, and return its outputs with their sizes, as far as shape inference finds them (rule 4)."""
    graph = model.graph
    graph.ClearField("value_info")
    declared_types = {}
    for value in graph.output:
        if value.type.tensor_type.HasField("shape"):
            declared_types[value.name] = _without_sizes(value.type)
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.shape.SetInParent()  # the checker needs a shape, and many files have no shape here
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        raise SourceError(
            f"{job.source.target} is not a valid ONNX model: {first_lines(str(error), 3)}",
            code="source",
            hint=f"onnx {onnx.__version__} checks it; export it again",
            **job.place("source"),
        ) from error
    constant_types = _constant_types(graph)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
        if value.name in constant_types:
            value.type.CopyFrom(constant_types[value.name])
    try:
        drop_ceil_modes(model)
        inferred_graph = onnx.shape_inference.infer_shapes(
            with_float32_sizes(model), check_type=True, strict_mode=True, data_prop=True
        ).graph
    except Exception as error:
        raise SourceError(
            f"the shapes of {job.source.target} do not fit together at the manifest's inputs: {first_lines(str(error), 3)}",
            code="onnx",
            hint="correct the profiles' shapes, or the model",
            **job.place("source"),
        ) from error
    names = {_size_name(number): number for number in range(len(job.shapes.symbols))}
    outputs: list[tuple[onnx.ValueInfoProto, list[Expression]]] = []
    data_sizes = 0
    for value, inferred in zip(graph.output, inferred_graph.output, strict=True):
        if not inferred.type.tensor_type.HasField("shape") and value.name in declared_types:
            inferred.type.CopyFrom(declared_types[value.name])
        tensor = inferred.type.tensor_type
        if not tensor.HasField("shape"):
            raise SourceError(
                f"the number of axes of output {value.name!r} of {job.source.target} is not known",
                code="onnx",
                hint="give its operators constant axes and shapes, or give the output a shape in the file",
                **job.place("source"),
            )
        sizes: list[Expression] = []
        for size in tensor.shape.dim:
            if size.HasField("dim_value"):
                sizes.append(size.dim_value)
            elif size.dim_param in names:
                sizes.append(size_expression(SymbolAxis(names[size.dim_param]), job))
            else:
                sizes.append(["data", data_sizes])
                data_sizes += 1
        outputs.append((value, sizes))
        value.type.CopyFrom(inferred.type)
    return outputs


def _without_sizes(type_: onnx.TypeProto) -> onnx.TypeProto:
    """A copy of a tensor type with its number of axes, and without sizes."""
    return onnx.helper.make_tensor_type_proto(type_.tensor_type.elem_type, [None] * len(type_.tensor_type.shape.dim))


def _constant_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The types of the inputs, weights and small constants. If such a value is an output, shape inference does not find its
    type."""
    types = {value.name: value.type for value in graph.input}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return types


def _element_type(value: torch.Tensor) -> int:
    name = str(value.dtype).removeprefix("torch.")
    element: int = onnx.TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper()))
    return element
