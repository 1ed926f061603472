"""Set the precision of layers to the types of the graph, for networks without strong types (TensorRT before 9).

In such networks, `BuilderFlag.FP16` allows half precision for all layers. But the lower step has decided which values of
the graph are float16 (`trtbuild.stages.lower.half_precision.precision`).

Rules
1. For a graph without float16 values, `BuilderFlag.FP16` is not set. Layers then compute floats in float32.
2. Otherwise this flag is set. Every layer that computes floats gets the precision and output type of its values in the
   graph. With OBEY_PRECISION_CONSTRAINTS, a build fails if TensorRT cannot follow these constraints. Layers that only move
   float16 values get no constraint, because TensorRT 8.6 refuses such constraints in fused attention ("Mismatched type for
   tensor", "Could not find any implementation for node {ForeignNode…}"). So TensorRT may move float16 values as float32.
3. A layer's values are found by their names in the main graph. The graph does not have them for a layer that the parser
   adds, or for a layer of a nested graph. Such a layer computes in the type of its first float input. The result of a
   cast has the type of the cast. If no type is known, the layer computes in float32.
4. Constants, casts, quantizers and plugins get no constraint, because their types are fixed. Layers that compute integers
   or booleans get no constraint, because they have no precision.
5. For a graph with quantizers, `BuilderFlag.INT8` is set, because TensorRT 8.6 refuses quantizers without it. The
   quantizers decide which layers compute in int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtbuild.toolchain.onnx_files.onnx_outline import FLOAT16, FLOAT32, Outline
from trtbuild.toolchain.tensorrt8.float_types import float_types

#: LayerType members that get no constraint (rule 4).
_LAYERS_WITHOUT_PRECISION = frozenset(("CONSTANT", "CAST", "SHAPE", "QUANTIZE", "DEQUANTIZE", "PLUGIN", "PLUGIN_V2"))
#: LayerType members that only move values (rule 2).
_MOVING_LAYERS = frozenset(("SHUFFLE", "SLICE", "CONCATENATION", "GATHER", "IDENTITY", "SELECT"))


def uses_half(model: Outline) -> bool:
    """Whether any value of a model, nested graphs included, is float16."""
    return FLOAT16 in float_types(model).values() or any(FLOAT16 in node.attribute_types for node in model.nodes)


def constrain_layers(trt: Any, network: Any, config: Any, model: Outline) -> None:
    """Apply the rules to the network that was parsed from `model`."""
    if any(node.operator in ("QuantizeLinear", "DequantizeLinear") for node in model.nodes):
        config.set_flag(trt.BuilderFlag.INT8)
    if not uses_half(model):
        return
    types = float_types(model)
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    data_types = {FLOAT32: trt.DataType.FLOAT, FLOAT16: trt.DataType.HALF}
    elements = {data_type: element for element, data_type in data_types.items()}
    float_data_types = tuple(elements)
    known: dict[str, int] = dict(types)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        outputs = [layer.get_output(k) for k in range(layer.num_outputs)]
        layer_type = str(layer.type).rpartition(".")[2]
        element = elements.get(outputs[0].dtype) if layer_type == "CAST" else _computed_type(layer, outputs, known)
        if element is not None:
            known.update((tensor.name, element) for tensor in outputs if tensor.name not in types)
        if layer_type in _LAYERS_WITHOUT_PRECISION or (layer_type in _MOVING_LAYERS and element == FLOAT16):
            continue
        if all(tensor.dtype not in float_data_types for tensor in outputs):
            continue
        layer.precision = data_types[element or FLOAT32]
        for k, tensor in enumerate(outputs):
            if tensor.dtype in float_data_types and not tensor.is_shape_tensor:
                layer.set_output_type(k, data_types[known.get(tensor.name, FLOAT32)])


def _computed_type(layer: Any, outputs: list[Any], known: Mapping[str, int]) -> int | None:
    """The type that a layer computes in (rules 2 and 3), or None if it is not known."""
    output_types = [known[tensor.name] for tensor in outputs if tensor.name in known]
    inputs = [layer.get_input(k) for k in range(layer.num_inputs)]
    input_types = [known[tensor.name] for tensor in inputs if tensor is not None and tensor.name in known]
    return next(iter(output_types + input_types), None)
