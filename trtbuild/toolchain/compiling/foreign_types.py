"""Find nodes with foreign types: element types in which an engine does not compute.

These nodes are refused, because an engine that computes in another type than the model has other results. The parser itself
accepts some of them. In TensorRT-RTX 1.7.1 (measured), it changes float64 to float32 and clamps values out of range. It
treats int8 values as quantized values, and quantizes to int8 where the model quantizes to uint8.

Rules
1. The model declares the types of its inputs, outputs and initializers, and types in attributes of nodes. If an operand or
   an attribute of an operator has a foreign type, the results of the operator are of a foreign type, too. The operands do
   not count if the operator itself determines the type (``Less`` always returns bool).
2. A node that reads or produces a value of a foreign type is refused. A nested graph counts as a part of its node.
3. Only QuantizeLinear and DequantizeLinear of the outer graph may read or produce values of quantized types. Quantizers to
   uint8 are refused.
4. TensorRT before 9 computes int64 in 32 bits, without an error. With such a toolchain (`narrows_int64`), an int64 value is
   allowed if 32 bits are enough to compute it (`trtbuild.toolchain.tensorrt8.int64_bounds`). All other int64 values are
   foreign: inputs, outputs, weights, casts of data, values that may exceed 32 bits. There are two exceptions:

   * The start and the end of a Slice may be any constants. A constant that does not fit 32 bits is beyond the end of the
     axis, and stays beyond the end in 32 bits.
   * A node that reads the size of a foreign value is refused only if no other node is refused. When the other nodes have
     been removed from the model, the size may come from another tensor.
5. An operand with indices, shapes or axes does not give its type to a result. If its type is foreign, the node is refused
   nevertheless (rule 2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trtbuild.core.values.element_types import BY_ONNX
from trtbuild.toolchain.onnx_files.onnx_outline import Node, Outline
from trtbuild.toolchain.tensorrt8.int64_bounds import INT64, Int64Bounds

#: onnx.TensorProto.DataType → torch's name of the type.
TYPE_NAMES = {number: element.name for number, element in BY_ONNX.items()}
#: Operators that determine the types of their results themselves (https://onnx.ai/onnx/operators).
_OWN_TYPE_OPERATORS = frozenset(
    ("Cast", "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
#: Operator → the number of its first operands that give their types to the results (rule 5). For other
#: operators, all operands do.
_DATA_OPERAND_COUNTS = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Reshape", "Expand", "Tile", "Unsqueeze"), 1),
    **dict.fromkeys(("Squeeze", "Transpose", "Split", "Pad", "Resize", "TopK", "CumSum", "Trilu", "ReduceSum"), 1),
}
_QUANTIZE_OPERATORS = frozenset(("QuantizeLinear", "DequantizeLinear"))
_UINT8 = 2  # onnx.TensorProto.DataType
#: int8, float8e4m3fn, float8e5m2, int4, float4e2m1 (onnx.TensorProto.DataType).
_QUANTIZED_TYPES = frozenset((3, 17, 19, 22, 23))


def _is_slice_limit(node: Node, name: str, bounds: Int64Bounds | None) -> bool:
    """Whether the operand `name` is the constant start or end of a Slice (rule 4)."""
    return bounds is not None and node.operator == "Slice" and name in node.inputs[1:3] and bounds.is_constant(name)


def foreign_nodes(
    model: Outline,
    dtypes: Collection[str],
    *,
    narrows_int64: bool = False,
    largest_sizes: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the nodes of `model` that read or produce values of a type outside `dtypes`: node name → reason.

    `narrows_int64` switches rule 4 on. `largest_sizes` maps inputs to the largest size of their axes, as far as it is
    known."""
    bounds = Int64Bounds(model, largest_sizes) if narrows_int64 else None
    foreign = {
        name: element
        for name, element in (*model.inputs, *model.outputs, *model.initializers)
        if TYPE_NAMES.get(element) not in dtypes
        and not (bounds is not None and bounds.is_constant(name) and bounds.fits_32_bits(name))
    }
    unsigned = {name for name, element in (*model.inputs, *model.initializers) if element == _UINT8}
    reasons: dict[str, str] = {}
    size_reasons: dict[str, str] = {}
    for node in model.nodes:
        operands = [name for name in node.inputs if not _is_slice_limit(node, name, bounds)]
        operand_types = {foreign[name] for name in operands if name in foreign}
        data_types = {foreign[name] for name in operands[: _DATA_OPERAND_COUNTS.get(node.operator)] if name in foreign}
        attribute_types = {element for element in node.attribute_types if TYPE_NAMES.get(element) not in dtypes}
        wrong_results = bounds.wrong_results(node) if bounds is not None else ()
        if bounds is not None and not wrong_results:
            attribute_types.discard(INT64)
        # Rule 3
        if _quantizes_to_uint8(node, unsigned):
            reasons[node.name] = f"{node.operator}: an engine quantizes to int8 instead of uint8"
            continue
        if _UINT8 in node.attribute_types or (
            node.operator not in _OWN_TYPE_OPERATORS and not unsigned.isdisjoint(node.inputs)
        ):
            unsigned.update(node.outputs)
        if node.operator in _QUANTIZE_OPERATORS and operand_types | attribute_types <= _QUANTIZED_TYPES:
            if node.operator == "QuantizeLinear":
                foreign.update((name, element) for name in node.outputs for element in operand_types | attribute_types)
            continue
        # The foreign types of the results (rules 1, 4 and 5)
        result_types = attribute_types if node.operator in _OWN_TYPE_OPERATORS else data_types | attribute_types
        foreign.update((name, INT64) for name in wrong_results)
        for name in node.outputs:
            if result_types:
                foreign.setdefault(name, min(result_types))
        # Rule 2
        node_types = operand_types | result_types | {foreign[name] for name in node.outputs if name in foreign}
        if node_types:
            kinds = ", ".join(TYPE_NAMES.get(element, f"ONNX type {element}") for element in sorted(node_types))
            only_size = narrows_int64 and node.operator in ("Shape", "Size")
            (size_reasons if only_size else reasons)[node.name] = (
                f"{node.operator}: {kinds} is not a type that an engine computes in"
            )
    return reasons or size_reasons


def _quantizes_to_uint8(node: Node, unsigned: Collection[str]) -> bool:
    """Whether a node may quantize to uint8. `unsigned` are the names of values of uint8.

    A quantizer without a zero point and without a type quantizes to uint8. The types in a nested graph are not known, so
    each quantizer there counts."""
    if node.operator != "QuantizeLinear":
        return "QuantizeLinear" in node.nested_operators
    zero_point = node.inputs[2] if len(node.inputs) > 2 else ""
    return zero_point in unsigned or _UINT8 in node.attribute_types or not (zero_point or node.attribute_types)
