"""Cast weights to float16 before TensorRT reads them, for releases that are not strongly typed.

All precisions of a model share one set of weights, so the graph casts them. TensorRT 8.6 does not fold such a cast. It
casts the weight in each run, and fuses fewer layers, because the weight is not a constant. On an H200, the class-token
model (of Torch-TensorRT's guide) takes 92 µs with the casts, 54 µs without them, and 56 µs in float32.

Rules
1. A new float16 weight replaces each Cast of a float32 weight to float16. It has the name of the Cast's output. The values
   are rounded to the nearest, ties to even. Magnitudes from 65520 become infinite, as PyTorch and ONNX define the Cast.
2. If no other node reads the float32 weight, and the weight is not an output of the model, it is removed.
3. Casts in nested graphs, and casts whose results are outputs of the model, stay in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtbuild.toolchain.onnx_files.onnx_editing import edit_model, encode_external_tensor
from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT16, FLOAT32, Bytes, Outline, read_outline


@dataclass(frozen=True)
class Narrowing:
    """A cast of weights to a smaller type: the element types (onnx.TensorProto.DataType), and numpy's types."""

    source_type: int
    source_numpy: Any
    target_type: int
    target_numpy: Any


_FLOAT_TO_HALF = Narrowing(FLOAT32, np.float32, FLOAT16, np.float16)


def cast_weights(
    model: bytes, weights: Mapping[str, Bytes], narrowing: Narrowing = _FLOAT_TO_HALF
) -> tuple[bytes, dict[str, Bytes]]:
    """Apply the rules to `model` and the data of its external weights. `narrowing` can replace the two types in the rules.
    Raises ValueError if `model` is not ONNX."""
    model_outline = read_outline(model)
    casts = _casts(model_outline, narrowing)
    if not casts:
        return model, dict(weights)
    sources = {model_outline.nodes[index].outputs[0]: name for index, name in casts.items()}
    read = {name for index, node in enumerate(model_outline.nodes) if index not in casts for name in node.inputs}
    unread = set(casts.values()) - read - {name for name, _ in model_outline.outputs}
    shapes = {weight.name: weight.shape for weight in model_outline.weights}
    new_weights = {name: data for name, data in weights.items() if name not in unread}
    new_weights |= {name: _narrow(weights[source], narrowing) for name, source in sources.items()}
    new_model = edit_model(
        model,
        nodes=dict.fromkeys(casts, ()),
        removed_initializers={k for k, (name, _) in enumerate(model_outline.initializers) if name in unread},
        initializers=[
            encode_external_tensor(name, shapes[source], narrowing.target_type) for name, source in sources.items()
        ],
    )
    return new_model, new_weights


def _casts(model_outline: Outline, narrowing: Narrowing) -> dict[int, str]:
    """Map the index of each cast of rule 1 to the name of the weight that it casts."""
    elements = dict(model_outline.initializers)
    floats = {weight.name for weight in model_outline.weights if elements[weight.name] == narrowing.source_type}
    outputs = {name for name, _ in model_outline.outputs}
    return {
        index: node.inputs[0]
        for index, node in enumerate(model_outline.nodes)
        if node.operator == "Cast" and node.attribute_types == (narrowing.target_type,) and node.inputs[0] in floats
        if node.outputs[0] not in outputs
    }


def _narrow(data: Bytes, narrowing: Narrowing) -> memoryview:
    with np.errstate(over="ignore"):
        narrow = np.frombuffer(data, narrowing.source_numpy).astype(narrowing.target_numpy)
    return memoryview(narrow.view(np.uint8))
