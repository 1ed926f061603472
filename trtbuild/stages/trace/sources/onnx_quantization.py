"""Quantized ONNX files: rewrite operators that TensorRT does not accept, and refuse those that cannot be rewritten.

Rules
1. TensorRT's quantization is symmetric: zero points are 0, and types are signed. A file with other quantizers is refused,
   because moving a zero point would change the results.
2. onnxruntime's static quantizer stores a bias as int32 numbers, which a DequantizeLinear node reads. TensorRT dequantizes
   integers of at most 8 bits. So the node is replaced by its result, which onnx's reference evaluator computes. The result
   does not depend on any input of the model.
3. Operators that compute with integers (``QLinearConv``, ``MatMulInteger``) are refused, because TensorRT has no such
   operators. TensorRT chooses integer arithmetic where it finds quantizers and dequantizers.
4. Scales in the file that are not positive and finite are refused. Computed scales are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx.reference import ReferenceEvaluator

from trtbuild.errors import SourceError
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.user_code.frames import first_lines

_UNSIGNED = {onnx.TensorProto.UINT8, onnx.TensorProto.UINT16, onnx.TensorProto.UINT4, onnx.TensorProto.UINT2}
_INTEGER_OPERATORS = (
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
    *("QAttention", "QGemm", "QLinearAdd"),
)
_SYMMETRIC_HINT = (
    "quantize with zero points of 0: onnxruntime's quantize_static(…, quant_format=QuantFormat.QDQ, "
    "activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, "
    'extra_options={"ActivationSymmetric": True, "WeightSymmetric": True})'
)

#: A function that returns the numbers of a tensor of the file.
Read = Callable[[onnx.TensorProto], np.ndarray]


def dequantize_biases(
    graph: onnx.GraphProto, read: Read, job: TraceJob, outer: Mapping[str, onnx.TensorProto] | None = None
) -> None:
    """Replace each DequantizeLinear of int32 initializers or constants by its result, in place (rule 2), also in nested
    graphs. `outer` are the initializers and constants of the graphs around `graph`. Raises SourceError for a node that
    cannot be computed."""
    initializers = _visible_tensors(graph, outer or {})
    kept = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                dequantize_biases(attribute.g, read, job, initializers)
        operands = [initializers.get(name) for name in node.input if name]
        is_complete = len(operands) > 1 and None not in operands and bool(node.output)
        if node.op_type != "DequantizeLinear" or not is_complete or not _is_int32(operands[0]):
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            continue
        try:
            result = _dequantized(node, [read(tensor) for tensor in operands if tensor is not None])
        except (TypeError, ValueError, IndexError) as error:
            raise SourceError(
                f"the bias of node {node.name!r} of {job.source.target} cannot be dequantized: "
                f"{first_lines(str(error), 1)}",
                code="onnx",
                hint="the axis and the shape of the scale must fit the bias: export the model again",
                **job.place("source"),
            ) from error
        graph.initializer.append(result)
    if len(kept) < len(graph.node):
        graph.ClearField("node")
        graph.node.extend(kept)


def refuse_unsupported_quantization(
    graph: onnx.GraphProto, read: Read, job: TraceJob, outer: Mapping[str, onnx.TensorProto] | None = None
) -> None:
    """Raise SourceError for the first node that rule 1, 3 or 4 refuses, also in nested graphs. `outer` are the initializers
    and constants of the graphs around `graph`."""
    initializers = _visible_tensors(graph, outer or {})
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                refuse_unsupported_quantization(attribute.g, read, job, initializers)
        if node.op_type in _INTEGER_OPERATORS:
            raise _error(node, f"is {node.op_type}, which computes with integers", job)
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        if len(node.input) < 2 or not node.output:
            continue  # onnx's checker, which runs later, rejects such a node
        scales = initializers.get(node.input[1])
        if scales is not None:
            numbers: np.ndarray = read(scales).astype(np.float64).ravel()
            wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
            if wrong.size:
                raise SourceError(
                    f"node {node.name!r} of {job.source.target} has the scale {wrong[0]:g}, but scales are positive",
                    code="onnx",
                    hint="calibrate with data that is not 0, and export the model again",
                    **job.place("source"),
                )
        zero_point_name = node.input[2] if len(node.input) > 2 else ""  # the name of an omitted input may be ""
        tensor = initializers.get(zero_point_name)
        output_type = _output_dtype(node)
        for data_type in (output_type, tensor.data_type if tensor is not None else output_type):
            if data_type in _UNSIGNED:
                kind = str(onnx.TensorProto.DataType.Name(data_type)).lower()
                raise _error(node, f"quantizes to {kind}, but TensorRT's types are signed", job)
        if node.op_type == "QuantizeLinear" and not zero_point_name and not output_type:
            raise _error(node, "quantizes to uint8 (it has no zero point), but TensorRT's types are signed", job)
        if tensor is None:
            continue
        zero_points: np.ndarray = read(tensor).astype(np.float32).ravel()
        if np.any(zero_points != 0):
            zero_point = next(value for value in zero_points if value != 0)
            raise _error(node, f"has the zero point {zero_point:g}, but TensorRT's zero points are 0", job)


def _visible_tensors(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> dict[str, onnx.TensorProto]:
    """The initializers and constants that the nodes of `graph` read, by name. Two branches may use one name for two."""
    own_names = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
    tensors = {name: tensor for name, tensor in outer.items() if name not in own_names}
    return tensors | {tensor.name: tensor for tensor in graph.initializer} | _constants(graph.node)


def _constants(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.TensorProto]:
    """The tensors of the Constant nodes among `nodes`, by the names of the results."""
    return {
        node.output[0]: attribute.t
        for node in nodes
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    }


def _error(node: onnx.NodeProto, problem: str, job: TraceJob) -> SourceError:
    return SourceError(
        f"node {node.name!r} of {job.source.target} {problem}", code="onnx", hint=_SYMMETRIC_HINT, **job.place("source")
    )


def _output_dtype(node: onnx.NodeProto) -> int:
    """The value of a node's attribute ``output_dtype``, or 0 (UNDEFINED)."""
    return next((attribute.i for attribute in node.attribute if attribute.name == "output_dtype"), 0)


def _is_int32(tensor: onnx.TensorProto | None) -> bool:
    return tensor is not None and tensor.data_type == onnx.TensorProto.INT32


def _dequantized(node: onnx.NodeProto, operands: list[np.ndarray]) -> onnx.TensorProto:
    """The result of a DequantizeLinear of constants, as an initializer with the name of the result. Opset 23 has the
    attributes of all older opsets."""
    names = [name for name in node.input if name]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, operands, strict=True)
    ]
    element = _output_dtype(node) or onnx.helper.np_dtype_to_tensor_dtype(operands[1].dtype)
    output = onnx.helper.make_tensor_value_info(node.output[0], element, None)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "bias", inputs, [output]), opset_imports=[onnx.helper.make_opsetid("", 23)]
    )
    (result,) = ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))
    return onnx.numpy_helper.from_array(
        np.asarray(result).astype(onnx.helper.tensor_dtype_to_np_dtype(element)), node.output[0]
    )
