"""Rewrite batch normalizations with half-precision input and float32 parameters, for parsers of strongly typed networks.

In this module, "half" is float16 or bfloat16. A `BatchNormalization` multiplies each channel by a factor and adds a term.
Both follow from its four parameters. If the input is half and the parameters are float32, the parser of TensorRT 10
(seen in TensorRT-RTX 1.7) casts the parameters to half, and computes factor and term in half. In float16, a variance of
65520 or more is then infinite, and an epsilon of 1e-5 has two significant digits. If the parameters are half, the parser
creates one Scale layer, which TensorRT folds into the convolution before it. Releases before 9 create this Scale layer from
float32 parameters, too, so they need no rewriting (8.6, on an H200: ResNet-50 takes 565 µs in both cases).

Rules
1. If the parameters are external and float32, the factor and the term are computed here in float64, and rounded to half.
   The factor becomes the new scale, and the term the new shift. The mean becomes 0, the variance 1, and epsilon 0. The term
   is computed with the rounded factor. So for an input equal to the old mean, the rounding of the factor does not change
   the result.
2. A rounded term fits half if it is finite. A rounded factor fits if it is finite and not subnormal; 0 fits. If one of
   them does not fit, the normalization is computed in float32, between casts. The same happens if the parameters are not
   external or not float32. Nothing changes if all parameters have the input's type, if the float type of an operand is not
   known, or if the normalization has several outputs.
3. Nodes in nested graphs are not changed, because the lower step leaves them in float32
   (`trtbuild.stages.lower.half_precision.precision`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_editing import edit_model, encode_external_tensor, encode_node
from trtbuild.toolchain.onnx_files.onnx_outline import BFLOAT16, FLOAT16, FLOAT32, Bytes, Node, read_outline
from trtbuild.toolchain.tensorrt8.float_types import float_types

#: The smallest normal number of each half type.
_SMALLEST_NORMAL = {FLOAT16: 2.0**-14, BFLOAT16: 2.0**-126}
_OPERATOR = "BatchNormalization"
#: The default epsilon: https://onnx.ai/onnx/operators/onnx__BatchNormalization.html.
_EPSILON = 1e-5


def rewrite_norms(
    model: bytes, weights: Mapping[str, Bytes], *, converts_half_norm_to_scale_layer: bool = True
) -> tuple[bytes, dict[str, Bytes]]:
    """Apply the rules to `model` and the data of its external weights. Raises ValueError if `model` is not ONNX.

    `converts_half_norm_to_scale_layer` is a property of the release (`trtbuild.toolchain.libraries.releases`). If it is
    False, all normalizations that the rules change are computed in float32.
    """
    model_outline = read_outline(model)
    if not any(entry.operator == _OPERATOR for entry in model_outline.nodes):
        return model, dict(weights)
    types = float_types(model_outline)
    shapes = {weight.name: weight.shape for weight in model_outline.weights}
    nodes: dict[int, tuple[bytes, ...]] = {}
    scaled: set[int] = set()
    new_weights: dict[str, Bytes] = dict(weights)
    new_initializers: list[bytes] = []
    for index, norm in enumerate(model_outline.nodes):
        input_types = [types.get(name) for name in norm.inputs]
        half_type = input_types[0] if norm.operator == _OPERATOR and len(norm.outputs) == 1 else None
        if half_type not in _SMALLEST_NORMAL or None in input_types or len(set(input_types)) == 1:
            continue
        can_scale = (
            converts_half_norm_to_scale_layer
            and set(input_types[1:]) == {FLOAT32}
            and shapes.keys() >= set(norm.inputs[1:])
        )
        scaling = _scale_parameters(norm, half_type, weights) if can_scale else None
        if scaling is None:
            nodes[index] = _float32_nodes(norm, types, half_type)
            continue
        scaled.add(index)
        names = [f"{norm.outputs[0]}.{part}" for part in ("factor", "term", "mean", "variance")]
        new_weights |= zip(names, scaling, strict=True)
        new_initializers += [encode_external_tensor(name, shapes[norm.inputs[1]], half_type) for name in names]
        nodes[index] = (encode_node(_OPERATOR, norm.name, [norm.inputs[0], *names], norm.outputs, {"epsilon": 0.0}),)
    read = {name for index, entry in enumerate(model_outline.nodes) if index not in scaled for name in entry.inputs}
    unread = {name for index in scaled for name in model_outline.nodes[index].inputs[1:]} - read
    unread -= {name for name, _ in model_outline.outputs}
    removed_initializers = {index for index, (name, _) in enumerate(model_outline.initializers) if name in unread}
    new_model = edit_model(model, nodes=nodes, removed_initializers=removed_initializers, initializers=new_initializers)
    return new_model, {name: data for name, data in new_weights.items() if name not in unread}


def _scale_parameters(norm: Node, half_type: int, weights: Mapping[str, Bytes]) -> list[memoryview] | None:
    """Return the new scale, shift, mean and variance (rule 1), or None if they do not fit `half_type` (rule 2)."""
    scale, shift, mean, variance = (
        np.frombuffer(weights[name], np.float32).astype(np.float64) for name in norm.inputs[1:]
    )
    with np.errstate(all="ignore"):
        factor = _round_to_half(scale / np.sqrt(variance + dict(norm.floats).get("epsilon", _EPSILON)), half_type)
        term = _round_to_half(shift - mean * factor, half_type)
    smallest = np.abs(factor[factor != 0]).min(initial=np.inf)
    if not (np.isfinite(factor).all() and np.isfinite(term).all()) or smallest < _SMALLEST_NORMAL[half_type]:
        return None
    values = (factor, term, np.zeros_like(factor), np.ones_like(factor))
    return [_half_bytes(value, half_type) for value in values]


def _float32_nodes(norm: Node, types: Mapping[str, int], half_type: int) -> tuple[bytes, ...]:
    """Return the normalization in float32, with the casts before and after it."""
    casts, inputs = [], []
    for position, name in enumerate(norm.inputs):
        if types[name] != FLOAT32:
            casts.append(
                encode_node(
                    "Cast", f"{norm.name}.{position}", [name], [f"{norm.outputs[0]}.{position}"], {"to": FLOAT32}
                )
            )
            name = f"{norm.outputs[0]}.{position}"
        inputs.append(name)
    result = f"{norm.outputs[0]}.wide"
    return (
        *casts,
        encode_node(_OPERATOR, norm.name, inputs, [result], dict(norm.floats)),
        encode_node("Cast", f"{norm.name}.narrow", [result], norm.outputs, {"to": half_type}),
    )


def _round_to_half(values: Any, half_type: int) -> Any:
    """Round `values` to the nearest number of `half_type`, ties to even. The result is float64. Values beyond the range
    become infinite."""
    if half_type == FLOAT16:
        return values.astype(np.float16).astype(np.float64)
    return (_bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _half_bytes(values: Any, half_type: int) -> memoryview:
    bits = values.astype(np.float16) if half_type == FLOAT16 else _bfloat16_bits(values)
    return memoryview(np.ascontiguousarray(bits).view(np.uint8))


def _bfloat16_bits(values: Any) -> Any:
    """Return the upper 16 bits of float32 values, rounded to the nearest, ties to even. NaN stays NaN."""
    floats = values.astype(np.float32)
    bits = floats.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(floats), 0x7FC0, rounded).astype(np.uint16)
