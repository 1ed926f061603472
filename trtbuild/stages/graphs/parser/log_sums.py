"""Write out the logarithms of sums of exponentials: LogSoftmax and ReduceLogSumExp. For PyTorch models, the lower step does
the same (`trtbuild.stages.lower.operators.log_sums`).

Values of 16 bits are computed in float32. Operators on float64 do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper as h

from trtbuild.stages.graphs.parser.graph import LARGEST, ModelFacts, attribute_of

_FLOAT = onnx.TensorProto.FLOAT


def write_out_log_softmax(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Yield ``x - max - log(sum(exp(x - max)))``.

    The parser replaces LogSoftmax by the logarithm of a softmax, which gives -inf for a number far below the largest one.
    Before opset 13, LogSoftmax treats its operand as a matrix: the axes from `axis` on form a row.
    """
    (source,), (result,) = node.input, node.output
    element = facts.float_element(source)
    if element not in LARGEST:
        yield node
        return
    is_matrix = facts.opset < 13
    axis = 1 if is_matrix else attribute_of(node, "axis", -1)
    axes = facts.add_constant(f"{result}.axes", np.array([axis], np.int64))

    def make(operator: str, operands: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return h.make_node(operator, operands, [output], name=node.name, **attributes)

    def reduce(operator: str, operand: str, output: str, input_since: int) -> onnx.NodeProto:
        if facts.opset >= input_since:
            return make(operator, [operand, axes], output, keepdims=1)
        return make(operator, [operand], output, keepdims=1, axes=[axis])

    x, last = source, result
    if is_matrix:
        yield make("Shape", [source], f"{result}.shape")
        yield make("Flatten", [x], x := f"{result}.rows", axis=attribute_of(node, "axis", 1))
        last = f"{result}.matrix"
    if element != _FLOAT:
        yield make("Cast", [x], x := f"{result}.float", to=_FLOAT)
    yield reduce("ReduceMax", x, f"{result}.max", 18)
    yield make("Sub", [x, f"{result}.max"], f"{result}.shifted")
    yield make("Exp", [f"{result}.shifted"], f"{result}.exp")
    yield reduce("ReduceSum", f"{result}.exp", f"{result}.sum", 13)
    yield make("Log", [f"{result}.sum"], f"{result}.log")
    difference = last if element == _FLOAT else f"{result}.wide"
    yield make("Sub", [f"{result}.shifted", f"{result}.log"], difference)
    if difference != last:
        yield make("Cast", [difference], last, to=element)
    if is_matrix:
        yield make("Reshape", [last, f"{result}.shape"], result)


def write_out_log_sum_exp(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Yield ``max + log(sum(exp(x - max)))``, where the infinities of `max` are replaced by finite numbers.

    The parser of TensorRT 8.6 does not subtract the maximum, so it gives inf for ``x = 100``. Before opset 8, Max and Min
    do not broadcast, so the node does not change. The axes are an input of ReduceSum since opset 13, and of ReduceMax since
    opset 18.
    """
    source, result = node.input[0], node.output[0]
    element = facts.float_element(source)
    if facts.opset < 8 or element not in LARGEST:
        yield node
        return
    axes = attribute_of(node, "axes", None) or None  # an empty list means all axes
    axes_inputs = [*node.input[1:]]
    if axes is not None and 13 <= facts.opset < 18:
        axes_inputs = [facts.add_constant(f"{result}.axes", np.array(axes, np.int64))]
    options = {"noop_with_empty_axes": 1} if attribute_of(node, "noop_with_empty_axes", 0) else {}
    limit = LARGEST[element]
    lowest, largest = (facts.add_number(f"{result}.limit", number, _FLOAT) for number in (-limit, limit))

    def make(operator: str, operands: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return h.make_node(operator, operands, [output], name=node.name, **attributes)

    def reduce(operator: str, operand: str, output: str, keepdims: int, input_since: int) -> onnx.NodeProto:
        if facts.opset >= input_since:
            return make(operator, [operand, *axes_inputs], output, keepdims=keepdims, **options)
        return make(operator, [operand], output, keepdims=keepdims, **({} if axes is None else {"axes": axes}))

    def finite_max(name: str, keepdims: int) -> Iterator[onnx.NodeProto]:
        yield reduce("ReduceMax", x, f"{name}.any", keepdims, 18)
        yield make("Max", [f"{name}.any", lowest], f"{name}.raised")
        yield make("Min", [f"{name}.raised", largest], name)

    x, keepdims, is_wide = source, attribute_of(node, "keepdims", 1), element == _FLOAT
    if not is_wide:
        yield make("Cast", [x], x := f"{result}.float", to=_FLOAT)
    yield from finite_max(f"{result}.max", 1)
    if not keepdims:
        yield from finite_max(f"{result}.reduced_max", 0)
    yield make("Sub", [x, f"{result}.max"], f"{result}.shifted")
    yield make("Exp", [f"{result}.shifted"], f"{result}.exp")
    yield reduce("ReduceSum", f"{result}.exp", f"{result}.sum", keepdims, 13)
    yield make("Log", [f"{result}.sum"], f"{result}.log")
    total = result if is_wide else f"{result}.wide"
    yield make("Add", [f"{result}.log", f"{result}.max" if keepdims else f"{result}.reduced_max"], total)
    if not is_wide:
        yield make("Cast", [total], result, to=element)
