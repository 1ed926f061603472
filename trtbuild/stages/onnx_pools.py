"""Pooling operators of an ONNX model whose last window is left out: find them, and set ``ceil_mode=0``.

With `ceil_mode`, the last window of a pooling may end after the padding. ONNX leaves this window out if it begins in the
padding at the end. But onnx's shape inference counts the window, so it finds a size that is too large by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.shape_inference
from onnx import helper as h

from trtbuild.stages.onnx_graphs import all_nodes
from trtbuild.stages.onnx_resizes import with_float32_sizes

#: Name of a value → its sizes, as far as they are known.
_Shapes = dict[str, list[int | None]]

_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def last_windows(node: onnx.NodeProto, known_sizes: Sequence[int | None] | None) -> tuple[bool, bool]:
    """Whether a pooling with `ceil_mode` may leave out the last window of an axis, and whether it may have a last window
    that ends after the padding. `known_sizes` are the sizes of the operand, as far as they are known."""
    attributes = {entry.name: h.get_attribute_value(entry) for entry in node.attribute}
    kernel = attributes.get("kernel_shape", [])
    axes = len(kernel)
    steps, gaps = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    pads = attributes.get("pads", [0] * 2 * axes)
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False, False
    sizes = [None] * axes if known_sizes is None else known_sizes[-axes:]
    is_left_out, is_rounded_up = False, False
    for size, width, step, gap, begin, end in zip(sizes, kernel, steps, gaps, pads[:axes], pads[axes:], strict=True):
        width = gap * (width - 1) + 1
        if size is None:
            is_left_out, is_rounded_up = is_left_out or step > width - end, True
            continue
        last = -((width - size - begin - end) // step)  # the number of the last window
        if last * step >= size + begin:
            is_left_out = True
        elif (size + begin + end - width) % step:
            is_rounded_up = True
    return is_left_out, is_rounded_up


def drop_ceil_modes(model: onnx.ModelProto) -> None:
    """Set ``ceil_mode=0`` in place where ONNX leaves out a pooling's last windows, and `ceil_mode` adds no other window.

    The results are the same, and shape inference then finds the right sizes. Each such pooling changes the sizes of later
    ones."""
    while any(_ceil_modes(node) for node in all_nodes(model.graph)):
        inferred = onnx.shape_inference.infer_shapes(with_float32_sizes(model), data_prop=True)
        if not _drop_ceil_mode(model.graph, inferred.graph, {}):
            return


def _drop_ceil_mode(graph: onnx.GraphProto, inferred: onnx.GraphProto, outer_shapes: _Shapes) -> bool:
    """Change the first such pooling of a graph and its nested graphs. Returns whether one was changed. `inferred` is the
    same graph with the results of shape inference."""
    shapes = outer_shapes | {
        value.name: [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if (tensor := value.type.tensor_type).HasField("shape")
    }
    for node, inferred_node in zip(graph.node, inferred.node, strict=True):
        if _ceil_modes(node) and last_windows(node, shapes.get(node.input[0])) == (True, False):
            for attribute in _ceil_modes(node):
                attribute.i = 0
            return True
        for attribute, inferred_attribute in zip(node.attribute, inferred_node.attribute, strict=True):
            if attribute.HasField("g") and _drop_ceil_mode(attribute.g, inferred_attribute.g, shapes):
                return True
    return False


def _ceil_modes(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    if node.op_type not in _POOLS:
        return []
    return [attribute for attribute in node.attribute if attribute.name == "ceil_mode" and attribute.i]
