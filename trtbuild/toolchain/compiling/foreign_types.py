"""Element types that an engine does not keep: the parser takes some by changing them in silence.

Measured with TensorRT-RTX 1.7.1: float64 inputs, weights, constants and casts become float32, out of range values are
clamped, and the parse succeeds; int8 means quantized. An engine that computes in another type is not the model, so:

Rules
1. A value has a foreign type when the model says so (inputs, outputs, initializers, attributes that name a type), or
   when it is made from such a value by an operator whose result may have the type of its operands.
2. A node that reads or makes a value of a foreign type is refused, with everything in a nested graph counted as its own.
3. Quantized types are at home between QuantizeLinear and DequantizeLinear, and nowhere else.
4. TensorRT before 9 has no int64 and computes it in 32 bits, in silence. A toolchain that `narrows` is right with int64
   values that 32 bits are known to hold (`trtbuild.toolchain.tensorrt8.counting`). All others are foreign: inputs,
   outputs, weights, casts of data, what outgrows 32 bits. Where a Slice starts and ends may be any constant: what 32 bits
   do not hold is beyond the end in them too.
   A node that takes the size of a foreign value is refused only where nothing else is: when the others are gone, the size
   may be had from another tensor.
5. Operands that only say where or how much (indices, shapes, axes) do not make a result foreign, though their node is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trtbuild.toolchain.onnx_files.element_types import NAMES
from trtbuild.toolchain.onnx_files.onnx_outline import Node, Outline
from trtbuild.toolchain.tensorrt8.counting import INT64, Counts

#: Operators whose results have a type of their own, whatever they read (https://onnx.ai/onnx/operators).
_OWN_TYPE = frozenset(
    ("Cast", "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
#: Operator → how many of its first operands its results have the type of (rule 5). All others: of any.
_DATA = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Reshape", "Expand", "Tile", "Unsqueeze"), 1),
    **dict.fromkeys(("Squeeze", "Transpose", "Split", "Pad", "Resize", "TopK", "CumSum", "Trilu", "ReduceSum"), 1),
}
_QUANTIZING = frozenset(("QuantizeLinear", "DequantizeLinear"))
_QUANTIZED = frozenset((2, 3, 17, 19))


def _is_end(node: Node, name: str, counts: Counts | None) -> bool:
    """Whether an operand is where a Slice starts or ends, as a constant (rule 4)."""
    return counts is not None and node.operator == "Slice" and name in node.inputs[1:3] and counts.is_constant(name)


def foreign_nodes(
    model: Outline, dtypes: Collection[str], *, narrows: bool = False, largest: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Nodes of `model` that read or make values of a type that is not in `dtypes` → why. `narrows` is rule 4; `largest` is
    the largest size of any axis of an input, by its name, as far as it is known."""
    counts = Counts(model, largest) if narrows else None
    foreign = {
        name: element
        for name, element in (*model.inputs, *model.outputs, *model.initializers)
        if NAMES.get(element) not in dtypes
        and not (counts is not None and counts.is_constant(name) and counts.fits(name))
    }
    found: dict[str, str] = {}
    sizes: dict[str, str] = {}
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
        makes = names if node.operator in _OWN_TYPE else data | names
        foreign.update((name, INT64) for name in wrong)
        for name in node.outputs:
            if makes:
                foreign.setdefault(name, min(makes))
        touched = reads | makes | {foreign[name] for name in node.outputs if name in foreign}
        if touched:
            kinds = ", ".join(NAMES.get(element, f"ONNX type {element}") for element in sorted(touched))
            only_size = narrows and node.operator in ("Shape", "Size")
            (sizes if only_size else found)[node.name] = (
                f"{node.operator}: {kinds} is not a type that an engine computes in"
            )
    return found or sizes
