"""Quantized ONNX files.

An int32 bias becomes the floats that onnxruntime computes from it. Operators that compute with integers are errors. So
are quantizers to unsigned types.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper as h

from tests.builds.quantized.test_quantized import quantized_file
from trtbuild.errors import SourceError
from trtbuild.stages.onnx_graphs import all_nodes
from trtbuild.stages.trace.sources.onnx_quantization import dequantize_biases, refuse_unsupported_quantization
from trtbuild.stages.trace.sources.onnx_weights import numbers_in

JOB: Any = SimpleNamespace(source=SimpleNamespace(target="m.onnx"), place=lambda *_: {})
READ_NUMBERS = numbers_in(Path(), JOB)


def results(model: onnx.ModelProto, x: Any) -> Any:
    options = onnxruntime.SessionOptions()  # with optimizations, the original would compute with integers
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return result


def test_the_rewritten_file_equals_the_original() -> None:
    original = quantized_file()
    model = onnx.ModelProto.FromString(original.SerializeToString())
    dequantize_biases(model.graph, READ_NUMBERS, JOB)
    # the input and the weights keep their DequantizeLinear, the bias does not
    assert [node.op_type for node in model.graph.node].count("DequantizeLinear") == 2
    onnx.checker.check_model(model)
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    np.testing.assert_array_equal(results(model, x), results(original, x))


def test_a_bias_in_a_constant_node_is_rewritten_too() -> None:
    original = quantized_file()
    constants = [tensor for tensor in original.graph.initializer if tensor.name.startswith("b")]
    others = [tensor for tensor in original.graph.initializer if not tensor.name.startswith("b")]
    nodes = [h.make_node("Constant", [], [tensor.name], value=tensor) for tensor in constants] + list(
        original.graph.node
    )
    graph = h.make_graph(nodes, "g", original.graph.input, original.graph.output, others)
    model = h.make_model(graph, opset_imports=original.opset_import, ir_version=original.ir_version)
    dequantize_biases(model.graph, READ_NUMBERS, JOB)
    assert [node.op_type for node in model.graph.node].count("DequantizeLinear") == 2
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    np.testing.assert_array_equal(results(model, x), results(original, x))


def bias_model(opset: int = 21, *, axis: int = 0, in_branch: bool = False, **attributes: int) -> onnx.ModelProto:
    """``y = x + b``, where an int32 bias has a scale for each element. With `in_branch`, a branch computes it."""
    element = attributes.get("output_dtype", onnx.TensorProto.FLOAT)
    x, y = (h.make_tensor_value_info(name, element, ["n", 3]) for name in "xy")
    nodes = [h.make_node("DequantizeLinear", ["b", "s"], ["d"], "bias", axis=axis, **attributes)]
    nodes.append(h.make_node("Add", ["x", "d"], ["y"]))
    constants = [
        onnx.numpy_helper.from_array(np.array([70000, -5, 8], np.int32), "b"),
        onnx.numpy_helper.from_array(np.array([0.5, 0.25, 3], np.float32), "s"),
    ]
    if in_branch:
        branches = {
            "then_branch": h.make_graph(nodes, "then", [], [y], constants[1:]),
            "else_branch": h.make_graph([h.make_node("Neg", ["x"], ["y"])], "else", [], [y]),
        }
        nodes = [h.make_node("If", ["c"], ["z"], **branches)]
        y = h.make_tensor_value_info("z", element, ["n", 3])
        constants = [constants[0], h.make_tensor("c", onnx.TensorProto.BOOL, [], [True])]
    graph = h.make_graph(nodes, "g", [x], [y], constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def test_a_bias_in_a_branch_is_rewritten_too() -> None:
    original, model = bias_model(in_branch=True), bias_model(in_branch=True)
    dequantize_biases(model.graph, READ_NUMBERS, JOB)
    assert "DequantizeLinear" not in [node.op_type for node in all_nodes(model.graph)]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(results(model, x), results(original, x))


def test_a_bias_may_name_its_type() -> None:
    """Since opset 23."""
    original, model = (bias_model(23, output_dtype=onnx.TensorProto.FLOAT16) for _ in range(2))
    dequantize_biases(model.graph, READ_NUMBERS, JOB)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    x = np.ones((2, 3), np.float16)
    np.testing.assert_array_equal(results(model, x), results(original, x))


def test_an_axis_that_a_bias_does_not_have_is_an_error() -> None:
    with pytest.raises(SourceError, match=r"the bias of node 'bias' of m\.onnx cannot be dequantized"):
        dequantize_biases(bias_model(axis=1).graph, READ_NUMBERS, JOB)


def test_rejects_an_integer_operator_and_names_it() -> None:
    graph = h.make_graph([h.make_node("MatMulInteger", ["a", "b"], ["c"], "product")], "g", [], [])
    with pytest.raises(SourceError, match="MatMulInteger, which computes with integers"):
        refuse_unsupported_quantization(graph, READ_NUMBERS, JOB)


def quantizer(inputs: list[str], zero_point_type: int | None = None, **attributes: int) -> onnx.GraphProto:
    """A graph with one QuantizeLinear. With `zero_point_type`, the graph has an initializer ``z`` of this element type."""
    node = h.make_node("QuantizeLinear", inputs, ["q"], "quantizer", **attributes)
    initializers = [] if zero_point_type is None else [h.make_tensor("z", zero_point_type, [], [0])]
    return h.make_graph([node], "g", [], [], initializers)


@pytest.mark.parametrize("inputs", [["x", "s"], ["x", "s", ""]])
def test_a_quantizer_without_a_zero_point_or_a_type_is_unsigned(inputs: list[str]) -> None:
    for attributes in ({}, {"output_dtype": onnx.TensorProto.UNDEFINED}):
        with pytest.raises(SourceError, match="quantizes to uint8"):
            refuse_unsupported_quantization(quantizer(inputs, **attributes), READ_NUMBERS, JOB)
    refuse_unsupported_quantization(quantizer(inputs, output_dtype=onnx.TensorProto.INT8), READ_NUMBERS, JOB)


@pytest.mark.parametrize(
    ("type_", "name"),
    [(onnx.TensorProto.UINT8, "uint8"), (onnx.TensorProto.UINT16, "uint16"), (onnx.TensorProto.UINT4, "uint4")],
)
def test_rejects_a_quantizer_whose_attribute_or_zero_point_is_unsigned(type_: int, name: str) -> None:
    error = f"quantizes to {name}, but TensorRT's types are signed"
    for graph in (
        quantizer(["x", "s"], output_dtype=type_),
        quantizer(["x", "s", "from_an_input"], output_dtype=type_),
        quantizer(["x", "s", "z"], zero_point_type=type_),
    ):
        with pytest.raises(SourceError, match=error):
            refuse_unsupported_quantization(graph, READ_NUMBERS, JOB)


def test_accepts_quantizers_to_signed_types() -> None:
    for type_ in (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT8E4M3FN):
        refuse_unsupported_quantization(quantizer(["x", "s", "z"], zero_point_type=type_), READ_NUMBERS, JOB)
        refuse_unsupported_quantization(
            quantizer(["x", "s", "z"], zero_point_type=type_, output_dtype=type_), READ_NUMBERS, JOB
        )
        refuse_unsupported_quantization(quantizer(["x", "s"], output_dtype=type_), READ_NUMBERS, JOB)


def test_rejects_a_quantizer_in_a_branch() -> None:
    """The parser reads a quantizer without a zero point as int8, but in ONNX it quantizes to uint8."""
    branch = quantizer(["x", "s"])
    node = h.make_node("If", ["c"], ["y"], "if", then_branch=branch, else_branch=quantizer(["x", "s", "z"], 3))
    with pytest.raises(SourceError, match=r"'quantizer' of .* quantizes to uint8"):
        refuse_unsupported_quantization(h.make_graph([node], "g", [], []), READ_NUMBERS, JOB)


def test_two_branches_may_have_zero_points_of_one_name() -> None:
    unsigned, signed = (quantizer(["x", "s", "z"], type_) for type_ in (onnx.TensorProto.UINT8, onnx.TensorProto.INT8))
    for branches in ((unsigned, signed), (signed, unsigned)):
        node = h.make_node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
        with pytest.raises(SourceError, match=r"'quantizer' of .* quantizes to uint8"):
            refuse_unsupported_quantization(h.make_graph([node], "g", [], []), READ_NUMBERS, JOB)
