"""Find the float type of each value of an ONNX model, from its operators and declarations."""

from __future__ import annotations

from trtbuild.toolchain.onnx_files.onnx_outline import BFLOAT16, FLOAT16, FLOAT32, Outline

_FLOAT_TYPES = (FLOAT32, FLOAT16, BFLOAT16)
#: Operators whose results are never floats.
_NON_FLOAT_OPERATORS = frozenset(
    (
        *("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "IsNaN", "IsInf"),
        *("And", "Or", "Not", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    )
)


def float_types(model: Outline) -> dict[str, int]:
    """Map the name of each float value to its element type.

    The first of these that exists determines the type: the declaration of the value, the output of the node's nested graph,
    a float type in the node's attributes (Cast, Constant, RandomNormal), the node's first float operand. The operand of a
    Cast does not count. The positions that TopK and MaxPool return also get this type. This does no harm:
    layers that compute integers get no constraint (precision.py, rule 4)."""
    types = {
        name: element_type
        for name, element_type in (*model.inputs, *model.initializers, *model.outputs)
        if element_type in _FLOAT_TYPES
    }
    for node in model.nodes:
        if node.operator in _NON_FLOAT_OPERATORS:
            continue
        if node.nested_output_types:
            nested_types = node.nested_output_types[-len(node.outputs) :]
            types.update(
                (name, element_type)
                for name, element_type in zip(node.outputs, nested_types, strict=False)
                if element_type in _FLOAT_TYPES and name not in types
            )
            continue
        attribute_types = [element_type for element_type in node.attribute_types if element_type in _FLOAT_TYPES]
        operand_types = [types[name] for name in node.inputs if name in types]
        if node.operator == "Cast":
            operand_types = []
        for result_type in (attribute_types or operand_types)[:1]:
            for name in node.outputs:
                types.setdefault(name, result_type)
    return types
