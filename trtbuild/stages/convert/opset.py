"""Convert a model from the opset of its translation to the opset of the toolchain.

onnxscript's converter raises opsets. This file lowers 18 to 17 for TensorRT 8.6, because onnx's own converter cannot
lower Pad. Rules 1 to 3 are about the changes of opset 18 (https://github.com/onnx/onnx/blob/main/docs/Changelog.md).

Rules
1. Operators that are new in 18 have no older form, so they are rejected. OptionalGetElement and
   OptionalHasElement are older, and take tensors since 18. They stay unchanged, and the parser decides about them.
2. Reductions have their axes as an input since 18 (ReduceSum since 13), and as an attribute before. Without axes, older
   reductions reduce over all axes. So ``noop_with_empty_axes`` has no older form. Axes that are not constants are
   rejected, too.
3. Pad, Resize, Split and LpPool got new attributes or inputs. The reductions of ScatterElements and ScatterND got new
   values (max, min). Nodes without these additions stay unchanged. An added attribute with its default value is removed.
   Split without sizes has the number of its outputs as an attribute since 18, and its last output may be smaller. In 17,
   the outputs have equal sizes. So such a Split is lowered only if the size of its axis is known, and is a multiple of
   the number of outputs. Other additions are rejected.
4. Shape has `start` and `end` since 15. The parser of TensorRT 8.6.0 ignores them without an error (measured: a Reshape
   got 9 sizes instead of 4), so a Slice replaces them.
5. ScatterElements and ScatterND have reductions since 16. NVIDIA's parser reads them since TensorRT 10.0 (onnx-tensorrt,
   docs/Changelog.md). Since that release, it also takes newer opsets, so it needs no model in an old opset. Older parsers
   may ignore a reduction, so it is rejected.
6. Pad has the mode wrap since 19. The exporter writes it in 18, too. NVIDIA's parser reads it since TensorRT 10.0
   (onnx-tensorrt, docs/Changelog.md). TensorRT 8.6.0 refuses it (measured: "Unsupported pad mode").
7. Einsum stays in PyTorch if its equation has an ellipsis, a letter twice in one operand, a capital letter, or more than
   two operands. The parser of TensorRT 8.5 does not support the first two (onnx-tensorrt, docs/operators.md; the changelog
   of 8.6 names no change). 8.6.0 refuses ``bii->bi`` (measured). The parser of 8.5 refuses capital letters
   (builtin_op_importers.cpp), and its layer takes at most two operands (https://github.com/pytorch/TensorRT/pull/1439). A
   user's ONNX model of an old opset keeps its equations, because the toolchain may be TensorRT 9, which supports them.

Rules 4 and 5 also apply to a user's ONNX model that has an old opset (`adapt_to_old_parser`): an old parser would ignore
what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
import onnx_ir
from onnxscript import version_converter

from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.canonical import ORIGIN_KEY
from trtbuild.stages.onnx_graphs import all_graphs, all_nodes

#: The oldest opset that trtbuild writes.
OLDEST_OPSET = 17

_NEW_OPERATORS = frozenset(
    ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CenterCropPad", "Col2Im", "GroupNormalization", "Mish")
)
_REDUCTIONS = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)
#: Operator → (attributes, position of the input) that opset 18 added.
_EXTENDED_OPERATORS: Mapping[str, tuple[tuple[str, ...], int | None]] = {
    "Pad": ((), 3),
    "Resize": (("antialias", "axes", "keep_aspect_ratio_policy"), None),
    "LpPool": (("ceil_mode", "dilations"), None),
}


def raise_opset(model: onnx_ir.Model, opset: int) -> None:
    """Convert `model` to `opset` in place, if `opset` is newer than the model's."""
    if model.opset_imports[""] < opset:
        version_converter.convert_version(model, opset, fallback=False)
        model.opset_imports[""] = opset


def lower_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return `model` in `opset`; a model of this opset or an older one is returned unchanged.

    Raises ConversionRefused if an operator has no older form, and if a conversion other than 18 to 17 would be needed.
    The error's `nodes` are the indices of the call_function nodes that the operator came from.
    """
    (opset_entry,) = (entry for entry in model.opset_import if not entry.domain)
    if opset_entry.version <= opset:
        return model
    if (opset_entry.version, opset) != (OLDEST_OPSET + 1, OLDEST_OPSET):
        raise ConversionRefused(
            f"trtbuild lowers an ONNX opset only from {OLDEST_OPSET + 1} to {OLDEST_OPSET}, "
            f"not from {opset_entry.version} to {opset}"
        )
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    _lower_graph(lowered.graph, {tensor.name: tensor for tensor in lowered.graph.initializer}, _known_sizes(model))
    for entry in lowered.opset_import:
        if not entry.domain:
            entry.version = opset
    return lowered


def adapt_to_old_parser(model: onnx.ModelProto) -> onnx.ModelProto:
    """Adapt `model` to a parser of opset `OLDEST_OPSET` (rules 4 and 5). The model has this opset or an older one. Raises
    ConversionRefused."""
    adapted = onnx.ModelProto()
    adapted.CopyFrom(model)
    _adapt_graph(adapted.graph)
    return adapted


def _adapt_graph(graph: onnx.GraphProto) -> None:
    _slice_shapes(graph)
    for node in graph.node:
        _refuse_reduction(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _adapt_graph(attribute.g)


def _refuse_reduction(node: onnx.NodeProto) -> None:
    reduction = next(
        (a.s for a in node.attribute if a.name == "reduction" and node.op_type.startswith("Scatter")), b"none"
    )
    if reduction in (b"max", b"min"):
        raise _refusal(node, "the reductions max and min are new in opset 18")
    if reduction != b"none":
        raise _refusal(node, "NVIDIA's parsers read its reduction only since TensorRT 10.0")


def _refuse_equation(node: onnx.NodeProto, equation: str) -> None:
    """Apply rule 7."""
    operands = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation:
        raise _refusal(node, f"{equation} has an ellipsis")
    if any(len(set(operand)) < len(operand) for operand in operands):
        raise _refusal(node, f"{equation} has a letter twice in one operand")
    if len(operands) > 2:
        raise _refusal(node, f"{equation} has more than two operands")
    if equation != equation.lower():
        raise _refusal(node, f"{equation} has a capital letter")


def _known_sizes(model: onnx.ModelProto) -> Mapping[str, list[int | None]]:
    """Value → its sizes; None for a size that shape inference does not find. Empty if no Split needs the sizes, or if the
    inference fails."""
    if not any(_is_equal_split(node) for node in all_nodes(model.graph)):
        return {}
    try:
        inferred_graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    sizes_by_name: dict[str, list[int | None]] = {}
    for graph in all_graphs(inferred_graph):
        for value in [*graph.input, *graph.value_info, *graph.output]:
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):
                sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
                # nested graphs may have values of the same name
                if sizes_by_name.setdefault(value.name, sizes) != sizes:
                    sizes_by_name[value.name] = []
        sizes_by_name.update((tensor.name, list(tensor.dims)) for tensor in graph.initializer)
    return sizes_by_name


def _is_equal_split(node: onnx.NodeProto) -> bool:
    return node.op_type == "Split" and any(attribute.name == "num_outputs" for attribute in node.attribute)


def _lower_graph(
    graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto], sizes: Mapping[str, list[int | None]]
) -> None:
    constants = {**constants, **{tensor.name: tensor for tensor in graph.initializer}}
    _slice_shapes(graph)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _lower_graph(attribute.g, constants, sizes)
        attribute_values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in _NEW_OPERATORS:
            raise _refusal(node, "it is new in opset 18")
        _refuse_reduction(node)
        if node.op_type in _REDUCTIONS:
            _axes_to_attribute(node, constants)
        elif node.op_type == "Einsum":
            _refuse_equation(node, attribute_values["equation"].decode())
        elif node.op_type == "Pad" and attribute_values.get("mode") == b"wrap":
            raise _refusal(node, "the mode wrap is new in opset 19")
        elif _is_equal_split(node):
            _split_equally(node, sizes.get(node.input[0], []), attribute_values.get("axis", 0))
        elif node.op_type in _EXTENDED_OPERATORS:
            attributes, position = _EXTENDED_OPERATORS[node.op_type]
            for name in attributes:
                if name in attribute_values and not _is_default(name, attribute_values[name]):
                    raise _refusal(node, f"{name} is new in opset 18")
                _drop_attribute(node, name)
            if position is not None and len(node.input) > position and node.input[position]:
                raise _refusal(node, f"input {position} is new in opset 18")


def _is_default(name: str, value: object) -> bool:
    """Whether an attribute that opset 18 added has its default."""
    if name == "dilations":
        return isinstance(value, list) and all(dilation == 1 for dilation in value)
    return value in (0, b"stretch")


def _slice_shapes(graph: onnx.GraphProto) -> None:
    """Apply rule 4. The Slice follows its Shape, and has the same origin."""
    nodes = []
    for node in graph.node:
        nodes.append(node)
        attribute_values = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type != "Shape" or not attribute_values:
            continue
        shape_part, full_shape = node.output[0], f"{node.output[0]}/whole"
        sliced = onnx.NodeProto(op_type="Slice", input=[full_shape], output=[shape_part])
        sliced.metadata_props.extend(node.metadata_props)
        for name, default in (("start", 0), ("end", np.iinfo(np.int64).max)):
            value = np.array([attribute_values.get(name, default)], np.int64)
            graph.initializer.append(onnx.numpy_helper.from_array(value, f"{shape_part}/{name}"))
            sliced.input.append(f"{shape_part}/{name}")
        node.output[0] = full_shape
        del node.attribute[:]
        nodes.append(sliced)
    del graph.node[:]
    graph.node.extend(nodes)


def _split_equally(node: onnx.NodeProto, sizes: list[int | None], axis: int) -> None:
    """Apply rule 3: in opset 17, a Split without sizes gives each output an equal part."""
    size = sizes[axis] if -len(sizes) <= axis < len(sizes) else None
    if size is None or size % len(node.output):
        raise _refusal(node, "its outputs may have different sizes")
    _drop_attribute(node, "num_outputs")


def _axes_to_attribute(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    name = node.input[1] if len(node.input) > 1 else ""
    del node.input[1:]
    if name and name not in constants:
        raise _refusal(node, "its axes are not a constant")
    axes = np.atleast_1d(onnx.numpy_helper.to_array(constants[name])).tolist() if name else []
    if axes:
        node.attribute.append(onnx.helper.make_attribute("axes", axes))
    elif any(a.name == "noop_with_empty_axes" and a.i for a in node.attribute):
        raise _refusal(node, "noop_with_empty_axes is new in opset 18")
    _drop_attribute(node, "noop_with_empty_axes")


def _drop_attribute(node: onnx.NodeProto, name: str) -> None:
    remaining = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(remaining)


def _refusal(node: onnx.NodeProto, reason: str) -> ConversionRefused:
    return ConversionRefused(
        f"{node.op_type} cannot be written for a parser of ONNX opset {OLDEST_OPSET}: {reason}",
        hint="use a newer toolchain, or name the operator in partition.torch_executed_ops",
        nodes=[int(entry.value) for entry in node.metadata_props if entry.key == ORIGIN_KEY],
    )
