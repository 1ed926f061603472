"""float64 weights that the graph casts to float32 become float32 weights of the engine."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from trtbuild.toolchain.compiling.double_weights import narrow_doubles
from trtbuild.toolchain.compiling.parsing import Parser
from trtbuild.toolchain.onnx_files.onnx_editing import encode_external_tensor


def model(*, casts: bool) -> bytes:
    """``x * w`` with a weight in float64; without `casts`, x is cast to float64."""
    nodes = [
        helper.make_node("Cast", ["w0" if casts else "i0"], ["c"], name="n0", to=1 if casts else 11),
        helper.make_node("Mul", ["i0", "c"] if casts else ["c", "w0"], ["o0" if casts else "m"], name="n1"),
    ]
    if not casts:
        nodes.append(helper.make_node("Cast", ["m"], ["o0"], name="n2", to=1))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("i0", TensorProto.FLOAT, [4])], [value("o0", TensorProto.FLOAT, [4])])
    graph.initializer.add().ParseFromString(encode_external_tensor("w0", (4,), TensorProto.DOUBLE))
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    return made


def test_the_weight_is_cast_as_pytorch_casts_it() -> None:
    values = np.array([0.1, -2.5, 1e300, 1e-50])
    found, weights = narrow_doubles(model(casts=True), {"w0": memoryview(values.view(np.uint8))})
    graph = onnx.load_from_string(found).graph
    assert [node.op_type for node in graph.node] == ["Mul"]
    assert [(tensor.name, tensor.data_type) for tensor in graph.initializer] == [("c", TensorProto.FLOAT)]
    assert np.frombuffer(weights["c"], np.float32).tolist() == [np.float32(0.1), -2.5, float("inf"), 0.0]


def test_a_weight_that_is_not_cast_stays() -> None:
    data = {"w0": memoryview(np.ones(4).view(np.uint8))}
    assert narrow_doubles(model(casts=False), data) == (model(casts=False), data)


@pytest.mark.parametrize(("truncates", "accepted"), [(False, False), (True, True)])
def test_the_parser_accepts_such_a_weight_only_with_truncate_double(truncates: bool, accepted: bool) -> None:
    assert (Parser("tensorrt-rtx", truncates_double=truncates).find_refusal(model(casts=True)) is None) == accepted


def test_the_parser_refuses_float64_that_is_computed() -> None:
    refusal = Parser("tensorrt-rtx", truncates_double=True).find_refusal(model(casts=False))
    assert refusal is not None
    assert "n1" in refusal.nodes
