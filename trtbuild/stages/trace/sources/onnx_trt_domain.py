"""Replace Model Optimizer's own operators in ONNX files (domain ``trt``, nvidia-modelopt 0.47) by ONNX's operators.

| operator | becomes QuantizeLinear or DequantizeLinear of |
|---|---|
| TRT_FP8QuantizeLinear, TRT_FP8DequantizeLinear | float8e4m3fn, since opset 19 |
| TRT_INT4QuantizeLinear, TRT_INT4DequantizeLinear, DequantizeLinear of int4 weights | int4, since opset 21 |

The operators in `_REFUSED` raise an error, because ONNX has no operator that could replace them. Other operators of the
domain stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.helper

from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob

DOMAIN = "trt"

_FLOAT8, _INT4 = onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.INT4
#: Operator → ONNX's operator, the type of the quantized numbers, and the first opset with this type.
_OPERATORS: Mapping[str, tuple[str, int, int]] = {
    "TRT_FP8QuantizeLinear": ("QuantizeLinear", _FLOAT8, 19),
    "TRT_FP8DequantizeLinear": ("DequantizeLinear", _FLOAT8, 19),
    "TRT_INT4QuantizeLinear": ("QuantizeLinear", _INT4, 21),
    "TRT_INT4DequantizeLinear": ("DequantizeLinear", _INT4, 21),
    "DequantizeLinear": ("DequantizeLinear", _INT4, 21),
}
_FINISH_HINT = "finish the export: modelopt.onnx.export has an exporter for each format, which stores quantized weights"
#: Operator → the problem and the hint.
_REFUSED: Mapping[str, tuple[str, str]] = {
    "TRT_FP4QDQ": ("stands for weights that are not quantized yet", _FINISH_HINT),
    "TRT_FP4DynamicQuantize": (
        "computes the scales of NVFP4 while the model runs",
        "quantize weights only, with W4A16_NVFP4_CFG of Model Optimizer, or to fp8",
    ),
    **dict.fromkeys(
        ("TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear"),
        ("quantizes to MXFP8, which trtbuild does not build", "quantize with FP8_DEFAULT_CFG of Model Optimizer"),
    ),
}


def replace_trt_operators(model: onnx.ModelProto, job: TraceJob) -> None:
    """Replace the operators of the table in place. Raises SourceError for an operator in `_REFUSED`, for an opset without
    the type, and for weights that are not quantized yet. Operators of the domain in neither table stay."""
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for number, node in enumerate(nodes):
        name = f"node {node.name or f'{node.op_type}_{number}'!r} of {job.source.target}"
        if node.op_type in _REFUSED:
            problem, hint = _REFUSED[node.op_type]
            raise _error(f"{name} is {DOMAIN}.{node.op_type}, which {problem}", hint, job)
        if node.op_type not in _OPERATORS:
            continue
        operator, element, first_opset = _OPERATORS[node.op_type]
        if operator == "DequantizeLinear" and node.input and node.input[0] in initializers:
            _set_stored_type(initializers[node.input[0]], element, name, job)
        if opset < first_opset:
            type_name = onnx.TensorProto.DataType.Name(element).lower()
            raise _error(
                f"{name} is {DOMAIN}.{node.op_type}: ONNX has {type_name} since opset {first_opset}, "
                f"and the file has {opset}",
                f"export it with opset_version={first_opset}",
                job,
            )
        node.domain, node.op_type = "", operator
        if operator == "QuantizeLinear" and len(node.input) == 2 and node.output:
            _set_result_type(model.graph, node, element)
    if nodes and not any(node.domain == DOMAIN for node in model.graph.node):
        kept = [entry for entry in model.opset_import if entry.domain != DOMAIN]
        model.ClearField("opset_import")
        model.opset_import.extend(kept)


def _set_result_type(graph: onnx.GraphProto, node: onnx.NodeProto, element: int) -> None:
    if element == _INT4:  # an int4 zero point would need the sizes of the blocks
        node.attribute.append(onnx.helper.make_attribute("output_dtype", element))
        return
    zero = f"{node.output[0]}__zero"
    graph.initializer.append(onnx.helper.make_tensor(zero, element, [], b"\0", raw=True))
    node.input.append(zero)


def _set_stored_type(tensor: onnx.TensorProto, element: int, name: str, job: TraceJob) -> None:
    if tensor.data_type == onnx.TensorProto.UINT8 and element == _FLOAT8:
        tensor.data_type = element  # Model Optimizer's exporter stores float8 numbers as uint8
    if tensor.data_type != element:
        type_name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise _error(
            f"{name} dequantizes {tensor.name!r}, which is not quantized yet: it is {type_name}", _FINISH_HINT, job
        )


def _error(problem: str, hint: str, job: TraceJob) -> SourceError:
    return SourceError(problem, code="onnx", hint=hint, **job.place("source"))
