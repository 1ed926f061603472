"""Find the float type of each value of an ONNX model, from its operators and declarations."""

from __future__ import annotations

from trtbuild.toolchain.onnx_files.onnx_outline import BFLOAT16, FLOAT16, FLOAT32, Outline

_FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
#: Operators whose result type does not depend on their operands; a Cast names it.
_NO_FLOATS = frozenset(
    ("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonMaxSuppression"))


def float_types(model: Outline) -> dict[str, int]:
    """Map the float values of a model to their element type. The float results of ONNX's operators have the type of the
    first float operand, except for Cast and operators with a type attribute. A nested graph declares the types of its
    results."""
    found = {
        name: element for name, element in (*model.inputs, *model.initializers, *model.outputs) if element in _FLOATS
    }
    for node in model.nodes:
        if node.operator in _NO_FLOATS:
            continue
        if node.results:
            made_inside = node.results[-len(node.outputs) :]
            found.update(
                (name, element)
                for name, element in zip(node.outputs, made_inside, strict=False)
                if element in _FLOATS and name not in found
            )
            continue
        named = [element for element in node.types if element in _FLOATS]
        read = [found[name] for name in node.inputs if name in found]
        if node.operator == "Cast":
            read = []
        made = (named or read)[:1]
        for name in node.outputs:
            if made:
                found.setdefault(name, made[0])
    return found
