"""float64 weights that the graph casts to float32 become float32 weights of the engine."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.compiling.parsing import Parser
from trtbuild.toolchain.onnx_files.onnx_editing import encode_external_tensor


def model(*, casts_weight: bool) -> bytes:
    """``x * w`` with x in float32 and the weight w in float64. The model casts w to float32, or x to float64."""
    if casts_weight:
        nodes = [
            helper.make_node("Cast", ["w0"], ["c"], name="n0", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["i0", "c"], ["o0"], name="n1"),
        ]
    else:
        nodes = [
            helper.make_node("Cast", ["i0"], ["c"], name="n0", to=TensorProto.DOUBLE),
            helper.make_node("Mul", ["c", "w0"], ["m"], name="n1"),
            helper.make_node("Cast", ["m"], ["o0"], name="n2", to=TensorProto.FLOAT),
        ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("i0", TensorProto.FLOAT, [4])], [value("o0", TensorProto.FLOAT, [4])])
    graph.initializer.add().ParseFromString(encode_external_tensor("w0", (4,), TensorProto.DOUBLE))
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


def test_the_weight_is_cast_as_pytorch_casts_it() -> None:
    values = np.array([0.1, -2.5, 1e300, 1e-50])
    narrowed, weights = narrow_doubles(model(casts_weight=True), {"w0": memoryview(values.view(np.uint8))})
    graph = onnx.load_from_string(narrowed).graph
    assert [node.op_type for node in graph.node] == ["Mul"]
    assert [(tensor.name, tensor.data_type) for tensor in graph.initializer] == [("c", TensorProto.FLOAT)]
    # as torch.tensor(values).float(): 1e300 overflows, 1e-50 underflows
    assert np.frombuffer(weights["c"], np.float32).tolist() == [np.float32(0.1), -2.5, float("inf"), 0.0]


def test_a_weight_that_is_not_cast_stays_float64() -> None:
    data = {"w0": memoryview(np.ones(4).view(np.uint8))}
    assert narrow_doubles(model(casts_weight=False), data) == (model(casts_weight=False), data)


@pytest.mark.parametrize(("truncates", "accepted"), [(False, False), (True, True)])
def test_the_parser_accepts_a_cast_weight_only_with_truncates_double(truncates: bool, accepted: bool) -> None:
    assert (
        Parser("tensorrt-rtx", truncates_double=truncates).find_refusal(model(casts_weight=True)) is None
    ) == accepted


def test_the_parser_refuses_nodes_that_compute_in_float64() -> None:
    refusal = Parser("tensorrt-rtx", truncates_double=True).find_refusal(model(casts_weight=False))
    assert refusal is not None
    assert "n1" in refusal.nodes
