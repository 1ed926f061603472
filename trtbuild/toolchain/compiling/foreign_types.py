"""Find nodes with element types that an engine does not compute in (foreign types). The parser changes some of these types
without an error.

Measured with TensorRT-RTX 1.7.1: float64 inputs, weights, constants and casts become float32, values out of range are
clamped, and the parse succeeds. The parser treats int8 values as quantized values. An engine that computes in another type
than the model has other results. So nodes with foreign types are refused.

Rules
1. A value has a foreign type if the model declares a foreign type for it (inputs, outputs, initializers, attributes with a
   type). If an operand of an operator has a foreign type, the results of the operator have this type too, unless the
   operator determines their type.
2. A node that reads or produces a value of a foreign type is refused. A nested graph counts as a part of its node.
3. Only QuantizeLinear and DequantizeLinear may read or produce values of quantized types.
4. TensorRT before 9 computes int64 in 32 bits, without an error. With such a toolchain (`narrows`), int64 values that are
   computed correctly are allowed (`trtbuild.toolchain.tensorrt8.int64_bounds`). All other int64 values are foreign: inputs,
   outputs, weights, casts of data, values that may exceed 32 bits. The start and end of a Slice may be any constant. A
   constant that does not fit 32 bits is beyond the end of the axis, and stays beyond the end in 32 bits. A node that reads
   the size of a foreign value is refused only if no other node is refused. After the other refused nodes were removed from
   the model, the size may come from another tensor.
5. An operand for indices, shapes or axes does not give its type to a result. If its type is foreign, the node is refused
   nevertheless (rule 2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trtbuild.core.values.element_types import BY_ONNX
from trtbuild.toolchain.onnx_files.onnx_outline import Node, Outline
from trtbuild.toolchain.tensorrt8.int64_bounds import INT64, Int64Bounds

#: onnx.TensorProto.DataType → torch's name of the type.
TYPE_NAMES = {number: element.name for number, element in BY_ONNX.items()}
#: Operators whose results have types that do not depend on the operands (https://onnx.ai/onnx/operators).
_OWN_TYPE_OPERATORS = frozenset(
    ("Cast", "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
#: Operator → n, if its results may have only the types of its first n operands (rule 5). The results of other operators may
#: have the types of all operands.
_DATA_OPERAND_COUNTS = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Reshape", "Expand", "Tile", "Unsqueeze"), 1),
    **dict.fromkeys(("Squeeze", "Transpose", "Split", "Pad", "Resize", "TopK", "CumSum", "Trilu", "ReduceSum"), 1),
}
_QUANTIZE_OPERATORS = frozenset(("QuantizeLinear", "DequantizeLinear"))
#: uint8, int8, float8e4m3fn, float8e5m2, int4, float4e2m1 (onnx.TensorProto.DataType).
_QUANTIZED_TYPES = frozenset((2, 3, 17, 19, 22, 23))


def _is_slice_limit(node: Node, name: str, bounds: Int64Bounds | None) -> bool:
    """Whether an operand is the constant start or end of a Slice (rule 4)."""
    return bounds is not None and node.operator == "Slice" and name in node.inputs[1:3] and bounds.is_constant(name)


def foreign_nodes(
    model: Outline, dtypes: Collection[str], *, narrows: bool = False, largest: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Return the nodes of `model` that read or produce values of a type outside `dtypes`: the name of the node → the
    reason. `narrows` switches rule 4 on. `largest` maps inputs to the largest size of any of their axes, as far as it is
    known."""
    bounds = Int64Bounds(model, largest) if narrows else None
    foreign = {
        name: element
        for name, element in (*model.inputs, *model.outputs, *model.initializers)
        if TYPE_NAMES.get(element) not in dtypes
        and not (bounds is not None and bounds.is_constant(name) and bounds.fits_32_bits(name))
    }
    reasons: dict[str, str] = {}
    size_reasons: dict[str, str] = {}
    for node in model.nodes:
        # the foreign types of the node's parts
        operands = [name for name in node.inputs if not _is_slice_limit(node, name, bounds)]
        operand_types = {foreign[name] for name in operands if name in foreign}
        data_types = {foreign[name] for name in operands[: _DATA_OPERAND_COUNTS.get(node.operator)] if name in foreign}
        attribute_types = {element for element in node.types if TYPE_NAMES.get(element) not in dtypes}
        wrong_results = bounds.wrong_results(node) if bounds is not None else ()
        if bounds is not None and not wrong_results:
            attribute_types.discard(INT64)
        # rule 3
        if node.operator in _QUANTIZE_OPERATORS and operand_types | attribute_types <= _QUANTIZED_TYPES:
            if node.operator == "QuantizeLinear":
                foreign.update((name, element) for name in node.outputs for element in operand_types | attribute_types)
            continue
        # the foreign types of the results (rules 1 and 5)
        result_types = attribute_types if node.operator in _OWN_TYPE_OPERATORS else data_types | attribute_types
        foreign.update((name, INT64) for name in wrong_results)
        for name in node.outputs:
            if result_types:
                foreign.setdefault(name, min(result_types))
        # rule 2
        node_types = operand_types | result_types | {foreign[name] for name in node.outputs if name in foreign}
        if node_types:
            kinds = ", ".join(TYPE_NAMES.get(element, f"ONNX type {element}") for element in sorted(node_types))
            only_size = narrows and node.operator in ("Shape", "Size")
            (size_reasons if only_size else reasons)[node.name] = (
                f"{node.operator}: {kinds} is not a type that an engine computes in"
            )
    return reasons or size_reasons
