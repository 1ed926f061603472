"""Write or refuse operators that compute each element alone: Clip, Mod, QuantizeLinear, Selu, Trilu, and reductions over no
axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper as h

from trtbuild.errors import ConversionRefused
from trtbuild.stages.graphs.parser.graph import LARGEST, ModelFacts, attribute_of, set_attribute

#: Attribute of Selu → its default since opset 6.
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}

#: Reduction → the operator that computes its result over no axes, and the number of times that it reads the operand. All
#: other reductions return their operand then.
_OF_NO_AXES: Mapping[str, tuple[str, int]] = {
    "ReduceL1": ("Abs", 1),
    "ReduceL2": ("Abs", 1),
    "ReduceLogSum": ("Log", 1),
    "ReduceSumSquare": ("Mul", 2),
}
#: The types for which `saturate` has an effect.
_FLOAT8 = frozenset((
    onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E4M3FNUZ, onnx.TensorProto.FLOAT8E5M2,
    onnx.TensorProto.FLOAT8E5M2FNUZ,
))  # fmt: skip


def order_bounds(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Write a Clip whose bounds are in the wrong order: ONNX gives the upper bound, TensorRT's layer gives the lower one.

    The upper bound replaces the lower one. If one of two bounds is not known, the Clip becomes a Max and a Min. The parser
    would make the same two layers from this Clip. The bounds are attributes before opset 11.
    """
    low, high = (attribute_of(node, name, None) for name in ("min", "max"))
    if low is not None and high is not None:
        set_attribute(node, "min", min(low, high))
    if len(node.input) == 3 and all(node.input):
        source, low_name, high_name = node.input
        low, high = facts.numbers.get(low_name), facts.numbers.get(high_name)
        if low is None or high is None:
            raised = f"{node.output[0]}.raised"
            yield h.make_node("Max", [source, low_name], [raised], name=node.name)
            del node.input[:]
            node.input.extend([raised, high_name])
            node.op_type = "Min"
        elif low > high:
            node.input[1] = high_name
    yield node


def write_selu_numbers(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Give Selu its numbers as attributes. A missing number is ONNX's default since opset 6. The parser's defaults are the
    rounded numbers of opset 1."""
    if facts.opset >= 6:
        for name, number in _SELU.items():
            set_attribute(node, name, attribute_of(node, name, number))
    yield node


def write_half(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Write which half Trilu keeps. Without the attribute, ONNX keeps the upper one, and the parser the lower one."""
    set_attribute(node, "upper", attribute_of(node, "upper", 1))
    yield node


def write_reduction_of_no_axes(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Write a reduction over no axes (``noop_with_empty_axes=1``) as an operator on each element. ONNX computes squares,
    absolute values or logarithms nevertheless, and the parser returns the operand."""
    axes = node.input[1] if len(node.input) > 1 else ""
    if attribute_of(node, "noop_with_empty_axes", 0) and (not axes or facts.sizes(axes) == [0]):
        operator, count = _OF_NO_AXES[node.op_type]
        yield h.make_node(operator, [node.input[0]] * count, list(node.output), name=node.name)
        return
    yield node


def refuse_overflow(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Refuse quantizers to float8 with ``saturate=0``. ONNX gives NaN or infinity for a number out of range. The parser
    ignores the attribute, and TensorRT gives the largest number."""
    if not attribute_of(node, "saturate", 1) and facts.element(node.output[0]) in {
        *_FLOAT8,
        onnx.TensorProto.UNDEFINED,
    }:
        raise ConversionRefused(
            "QuantizeLinear has saturate=0, which TensorRT's parser ignores",
            hint="export the model with saturate=1, if its numbers may be limited to the range of float8",
        )
    yield node


def refuse_float_mod(node: onnx.NodeProto, facts: ModelFacts) -> Iterator[onnx.NodeProto]:
    """Refuse Mod of floats with ``fmod=1``. The parser divides and rounds the quotient, so ``fmod(1.0, 0.1)`` gives 0
    instead of 0.1. A divisor that is a power of two of at least 1 is accepted, because the quotient is exact."""
    divisor, number = facts.initializer(node.input[1]), facts.numbers.get(node.input[1])
    if divisor is None and number is not None:
        divisor = np.array(number)
    is_exact = divisor is not None and _are_exact(divisor)
    if attribute_of(node, "fmod", 0) and facts.float_element(node.output[0]) in LARGEST and not is_exact:
        raise ConversionRefused(
            "TensorRT rounds the quotient of Mod with fmod=1, so floats may have another remainder than in ONNX",
            hint="compute the remainder outside of the model, or divide by a power of two",
        )
    yield node


def _are_exact(divisors: np.ndarray) -> bool:
    """Whether all divisors are powers of two of at least 1."""
    numbers: list[float] = divisors.astype(np.float64).ravel().tolist()
    return all(abs(number) >= 1 and abs(math.frexp(number)[0]) == 0.5 for number in numbers)
