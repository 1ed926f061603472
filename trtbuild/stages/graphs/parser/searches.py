"""Write operators that search elements or boxes: ArgMax, ArgMin, TopK and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.parser.graph import LARGEST, ModelFacts, attribute_of


def search_finite_numbers(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Write a search of floats so that TensorRT gives the indices of infinities.

    TensorRT gives the index -1 for an infinity that is the last in the order: for -inf if the largest numbers come first.
    So this infinity becomes the nearest finite number (-inf the lowest one). The infinity and this number then have no
    order among themselves. The values of TopK are gathered
    from the operand itself. Before opset 11, ONNX has no GatherElements, so the node does not change.
    """
    source, element, is_top = node.input[0], facts.element(node.input[0]), node.op_type == "TopK"
    reads_indices = not is_top or (len(node.output) == 2 and node.output[1] in facts.read_names)
    if facts.opset < 11 or element not in LARGEST or not reads_indices:
        yield node
        return
    is_largest = node.op_type == "ArgMax" or (is_top and attribute_of(node, "largest", 1))
    finite = f"{node.output[-1]}.finite"
    limit = facts.add_number(f"{finite}.limit", -LARGEST[element] if is_largest else LARGEST[element], element)
    yield h.make_node("Max" if is_largest else "Min", [source, limit], [finite], name=node.name)
    node.input[0] = finite
    yield node
    if is_top and node.output[0] in facts.read_names:
        values, indices = node.output
        node.output[0] = f"{finite}.values"
        axis = attribute_of(node, "axis", -1)
        yield h.make_node("GatherElements", [source, indices], [values], name=node.name, axis=axis)


def write_threshold(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Write the score threshold of NonMaxSuppression. Without it, ONNX keeps boxes of every score, and the parser takes 0.

    A threshold of overlaps that is left out is 0 in ONNX. Without `max_output_boxes_per_class`, ONNX selects nothing, and
    TensorRT selects boxes. Such a node is refused.
    """
    _, _, count, overlap, threshold = [*node.input, "", "", ""][:5]
    if not count:
        raise ConversionRefused(
            "NonMaxSuppression has no max_output_boxes_per_class: ONNX selects no boxes, TensorRT selects some",
            hint="export the model with a number of boxes",
        )
    if not threshold:
        result = node.output[0]
        lowest = np.array([-LARGEST[onnx.TensorProto.FLOAT]], np.float32)
        overlap = overlap or facts.add_constant(f"{result}.overlap", np.zeros(1, np.float32))
        del node.input[3:]
        node.input.extend([overlap, facts.add_constant(f"{result}.threshold", lowest)])
    yield node
