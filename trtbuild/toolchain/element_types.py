"""Element types that an engine does not keep: the parser takes some by changing them in silence.

Measured with TensorRT-RTX 1.7.1: float64 inputs, weights, constants and casts become float32, out of range values are
clamped, and the parse succeeds; int8 means quantized. An engine that computes in another type is not the model, so:

Rules
1. A value has a foreign type when the model says so (inputs, outputs, initializers, attributes that name a type), or
   when it is made from such a value by an operator whose result may have the type of its operands.
2. A node that reads or makes a value of a foreign type is refused, with everything in a nested graph counted as its own.
3. Quantized types are at home between QuantizeLinear and DequantizeLinear, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from trtbuild.toolchain.onnx_outline import Outline

#: onnx.TensorProto.DataType → torch's name, as in `Flavour.dtypes`.
NAMES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    19: "float8_e5m2",
}
#: onnx.TensorProto.DataType → tensorrt.DataType, of what may be an input or output.
TENSORRT_TYPES = {1: "FLOAT", 2: "UINT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}

#: Operators whose results have a type of their own, whatever they read (https://onnx.ai/onnx/operators).
_OWN_TYPE = frozenset(
    ("Cast", "Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
_QUANTIZING = frozenset(("QuantizeLinear", "DequantizeLinear"))
_QUANTIZED = frozenset((2, 3, 17, 19))


def foreign_nodes(model: Outline, dtypes: Collection[str]) -> dict[str, str]:
    """Nodes of `model` that read or make values of a type that is not in `dtypes` → why."""
    foreign = {
        name: element
        for name, element in (*model.inputs, *model.outputs, *model.initializers)
        if NAMES.get(element) not in dtypes
    }
    found: dict[str, str] = {}
    for node in model.nodes:
        reads = {foreign[name] for name in node.inputs if name in foreign}
        names = {element for element in node.types if NAMES.get(element) not in dtypes}
        if node.operator in _QUANTIZING and reads | names <= _QUANTIZED:
            if node.operator == "QuantizeLinear":
                foreign.update((name, element) for name in node.outputs for element in reads | names)
            continue
        makes = names if node.operator in _OWN_TYPE else reads | names
        for name in node.outputs:
            if makes:
                foreign.setdefault(name, min(makes))
        touched = reads | makes | {foreign[name] for name in node.outputs if name in foreign}
        if touched:
            kinds = ", ".join(NAMES.get(element, f"ONNX type {element}") for element in sorted(touched))
            found[node.name] = f"{node.operator}: {kinds} is not a type that an engine computes in"
    return found
