"""Which float type each value of an ONNX model has, as far as operators and declarations tell."""

from __future__ import annotations

from trtbuild.toolchain.onnx_files.onnx_outline import BFLOAT16, FLOAT16, FLOAT32, Outline

_FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
#: Operators whose result has a type of its own; a Cast names it.
_NO_FLOATS = frozenset(
    ("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "IsNaN", "IsInf", "And", "Or", "Not", "Xor")
) | frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonMaxSuppression"))


def float_types(model: Outline) -> dict[str, int]:
    """The float values of a model → their element type. ONNX's operators make floats of the type of the floats that they
    read first, but Cast, and those that name a type; what comes out of a nested graph is what that says."""
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
