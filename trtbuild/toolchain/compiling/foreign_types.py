"""Find nodes with element types that an engine does not compute in (foreign types). The parser changes some of these types
without an error.

Measured with TensorRT-RTX 1.7.1: float64 inputs, weights, constants and casts become float32, out of range values are
clamped, and the parse succeeds. int8 means quantized. An engine that computes in another type differs from the model. So
such nodes are refused.

Rules
1. A value has a foreign type if the model declares it so (inputs, outputs, initializers, attributes with a type). The
   result of an operator with such an operand has the foreign type, too, if results may have the type of operands.
2. A node that reads or produces a value of a foreign type is refused. Nested graphs count as part of their node.
3. Quantized types are allowed only between QuantizeLinear and DequantizeLinear.
4. TensorRT before 9 computes int64 in 32 bits, without an error. With such a toolchain (`narrows`), int64 values that are
   known to fit 32 bits are allowed (`trtbuild.toolchain.tensorrt8.counting`). All other int64 values are foreign: inputs,
   outputs, weights, casts of data, values that may exceed 32 bits. The start and end of a Slice may be any constant: a
   value that does not fit 32 bits is beyond the end of the axis in 32 bits, too. A node that reads the size of a foreign
   value is refused only if no other node is refused: without the other nodes, the size may come from another tensor.
5. Operands for indices, shapes and axes do not make a result foreign. Their node is refused nevertheless (rule 2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trtbuild.core.values.element_types import BY_ONNX
from trtbuild.toolchain.onnx_files.onnx_outline import Node, Outline
from trtbuild.toolchain.tensorrt8.counting import INT64, Counts

#: onnx.TensorProto.DataType → torch's name of the type.
NAMES = {number: element.name for number, element in BY_ONNX.items()}
#: Operators whose result types do not depend on their operands (https://onnx.ai/onnx/operators).
_OWN_TYPE = frozenset(
    ("Cast", "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
#: Operator → the number of first operands whose types its results may have (rule 5). Other operators: all operands.
_DATA = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Reshape", "Expand", "Tile", "Unsqueeze"), 1),
    **dict.fromkeys(("Squeeze", "Transpose", "Split", "Pad", "Resize", "TopK", "CumSum", "Trilu", "ReduceSum"), 1),
}
_QUANTIZING = frozenset(("QuantizeLinear", "DequantizeLinear"))
_QUANTIZED = frozenset((2, 3, 17, 19))


def _is_end(node: Node, name: str, counts: Counts | None) -> bool:
    """Whether an operand is the constant start or end of a Slice (rule 4)."""
    return counts is not None and node.operator == "Slice" and name in node.inputs[1:3] and counts.is_constant(name)


def foreign_nodes(
    model: Outline, dtypes: Collection[str], *, narrows: bool = False, largest: Mapping[str, int] | None = None
) -> dict[str, str]:
    """The nodes of `model` that read or produce values of a type outside `dtypes`, each with the reason. `narrows` switches
    rule 4 on. `largest` maps inputs to the largest size of any of their axes, as far as it is known."""
    counts = Counts(model, largest) if narrows else None
    foreign = {
        name: element
        for name, element in (*model.inputs, *model.outputs, *model.initializers)
        if NAMES.get(element) not in dtypes
        and not (counts is not None and counts.is_constant(name) and counts.fits(name))
    }
    reasons: dict[str, str] = {}
    size_reasons: dict[str, str] = {}
    for node in model.nodes:
        operands = [name for name in node.inputs if not _is_end(node, name, counts)]
        reads = {foreign[name] for name in operands if name in foreign}
        data = {foreign[name] for name in operands[: _DATA.get(node.operator)] if name in foreign}
        names = {element for element in node.types if NAMES.get(element) not in dtypes}
        wrong = counts.wrong(node) if counts is not None else ()
        if counts is not None and not wrong:
            names.discard(INT64)
        if node.operator in _QUANTIZING and reads | names <= _QUANTIZED:
            if node.operator == "QuantizeLinear":
                foreign.update((name, element) for name in node.outputs for element in reads | names)
            continue
        produces = names if node.operator in _OWN_TYPE else data | names
        foreign.update((name, INT64) for name in wrong)
        for name in node.outputs:
            if produces:
                foreign.setdefault(name, min(produces))
        touched = reads | produces | {foreign[name] for name in node.outputs if name in foreign}
        if touched:
            kinds = ", ".join(NAMES.get(element, f"ONNX type {element}") for element in sorted(touched))
            only_size = narrows and node.operator in ("Shape", "Size")
            (size_reasons if only_size else reasons)[node.name] = (
                f"{node.operator}: {kinds} is not a type that an engine computes in"
            )
    return reasons or size_reasons
