"""ONNX models between the steps: the text of the graph, conversions to older opsets, and partitions."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from trtbuild.core.partition.partitions import TensorType
from trtbuild.errors import ConversionRefused
from trtbuild.stages.convert.weights import with_inline_weights
from trtbuild.stages.graphs import onnx_model
from trtbuild.stages.graphs.handlers import HANDLERS, ModelPartition

WEIGHT = np.arange(20, dtype=np.float32).reshape(4, 5)
INPUT, OUTPUT_SHAPE = TensorType("float32", (["sym", 0], 4)), (["sym", 0], 5)


def blob(nodes: list[onnx.NodeProto], opset: int, *, size: str = "n") -> bytes:
    """The graph of a model ``x [n, 4], w [4, 5] → y``."""
    inputs = [h.make_tensor_value_info("w", T.FLOAT, [4, 5]), h.make_tensor_value_info("x", T.FLOAT, [size, 4])]
    outputs = [h.make_tensor_value_info("y", T.FLOAT, [size, 5])]
    for number, node in enumerate(nodes):
        node.name = node.name or f"user_{number}"
    axes = onnx.numpy_helper.from_array(np.array([0], np.int64), "axes")
    graph = h.make_graph(nodes, "g", inputs, outputs, initializer=[axes])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)])
    return onnx_model.blob(model, 1, [INPUT], [OUTPUT_SHAPE], example=[(3, 4)])


def product(name: str = "product") -> list[onnx.NodeProto]:
    """The nodes of ``y = relu(x) @ w``. `name` is the name of the node MatMul."""
    return [h.make_node("Relu", ["x"], ["r"]), h.make_node("MatMul", ["r", "w"], ["y"], name=name)]


def run(model: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(with_inline_weights(model, {"w0": WEIGHT}))
    (output,) = session.run(None, {"i0": x})
    return np.asarray(output)


def test_a_model_whose_opset_is_old_enough_is_not_changed() -> None:
    converted, calls = onnx_model.convert_to_opset(blob(product(), 13), 20)
    proto = onnx.ModelProto.FromString(converted)
    assert proto.opset_import[0].version == 13
    assert not proto.metadata_props and not any(node.metadata_props for node in proto.graph.node)
    assert calls == (0, 1)
    x = np.ones((3, 4), np.float32)
    assert np.array_equal(run(converted, x), x @ WEIGHT)


@pytest.mark.parametrize("opset", [11, 17, 20])
def test_no_log_softmax_reaches_the_parser(opset: int) -> None:
    """The parser computes the logarithm of a softmax, which is -inf for most of these products."""
    nodes = [*product()[:1], h.make_node("MatMul", ["r", "w"], ["m"]), h.make_node("LogSoftmax", ["m"], ["y"])]
    converted, calls = onnx_model.convert_to_opset(blob(nodes, opset), 20)
    operators = [node.op_type for node in onnx.ModelProto.FromString(converted).graph.node]
    assert "LogSoftmax" not in operators and calls == (0, 1, *[2] * (len(operators) - 2))
    result = run(converted, np.full((3, 4), 50, np.float32))
    np.testing.assert_allclose(result[0], [-800, -600, -400, -200, 0], rtol=1e-5)


@pytest.mark.parametrize(("opset", "target"), [(18, 17), (20, 17), (24, 20)])
def test_a_newer_model_is_converted_to_the_target_opset(opset: int, target: int) -> None:
    nodes = [
        h.make_node("Relu", ["x"], ["r"]),
        h.make_node("ReduceMax", ["r", "axes"], ["m"], keepdims=1),
        h.make_node("Sub", ["r", "m"], ["d"]),
        h.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    converted, calls = onnx_model.convert_to_opset(blob(nodes, opset), target)
    assert onnx.ModelProto.FromString(converted).opset_import[0].version == target
    assert calls == (0, 1, 2, 3)
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    assert np.allclose(run(converted, x), (x - x.max(0)) @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_an_operator_that_the_older_opset_lacks_is_refused_with_a_hint() -> None:
    nodes = [h.make_node("Gelu", ["x"], ["r"]), h.make_node("MatMul", ["r", "w"], ["y"])]
    with pytest.raises(
        ConversionRefused, match=r"is in opset 20, the toolchain takes 17.*No Previous Version of Gelu"
    ) as caught:
        onnx_model.convert_to_opset(blob(nodes, 20), 17)
    assert caught.value.hint == "export it with opset_version=17"


@pytest.mark.parametrize("opset", [15, 17, 18, 20])
def test_a_part_of_a_shape_is_a_slice_in_every_opset(opset: int) -> None:
    # the parser of TensorRT 8.6.0 ignores `start` and `end` without an error
    nodes = [
        h.make_node("Shape", ["x"], ["rows"], start=0, end=1),
        h.make_node("Cast", ["rows"], ["r"], to=T.FLOAT),
        h.make_node("Mul", ["x", "r"], ["p"]),
        h.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    converted, calls = onnx_model.convert_to_opset(blob(nodes, opset), 17)
    proto = onnx.ModelProto.FromString(converted)
    assert [node.op_type for node in proto.graph.node] == ["Shape", "Slice", "Cast", "Mul", "MatMul"]
    assert not proto.graph.node[0].attribute and calls == (0, -1, 1, 2, 3)  # -1: the slice is not in the blob
    x = np.ones((3, 4), np.float32)
    assert np.array_equal(run(converted, x), (x * 3) @ WEIGHT)
    newer, _ = onnx_model.convert_to_opset(blob(nodes, opset), 20)
    assert len(onnx.ModelProto.FromString(newer).graph.node) == 4  # parsers of opset 20 support `start` and `end`


def test_rejects_a_scatter_reduction_that_old_parsers_may_not_support() -> None:
    nodes = [
        h.make_node("Cast", ["axes"], ["i"], to=T.INT64),
        h.make_node("Unsqueeze", ["i", "axes"], ["at"]),
        h.make_node("Gather", ["x", "axes"], ["row"]),
        h.make_node("ScatterND", ["x", "at", "row"], ["r"], reduction="add"),
        h.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    with pytest.raises(
        ConversionRefused, match="takes ONNX opset 17, and the model cannot be written in it: ScatterND"
    ):
        onnx_model.convert_to_opset(blob(nodes, 17), 17)
    onnx_model.convert_to_opset(blob(nodes, 17), 20)


def test_a_conversion_that_changes_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, wrong_models = onnx.version_converter.convert_version, []

    def wrong(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        converted = convert(model, opset)
        converted.graph.node[0].op_type = "Tanh"
        wrong_models.append(converted)
        return converted

    monkeypatch.setattr(onnx.version_converter, "convert_version", wrong)
    with pytest.raises(ConversionRefused, match=r"converter to opset 17 changes the model: output 0 has a relative"):
        onnx_model.convert_to_opset(blob(product(), 20), 17)
    assert wrong_models


def test_the_text_of_the_graph_has_no_names_of_the_user() -> None:
    first = onnx_model.graph_text(blob(product(), 17))
    assert onnx_model.graph_text(blob(product("renamed"), 17, size="rows")) == first
    assert onnx_model.graph_text(blob(product(), 18)) != first
    assert onnx_model.node_names(blob(product("renamed"), 17))[1] == ("renamed", "MatMul", "")


def partition(refusal: object) -> ModelPartition:
    """Partition a model. `refusal` is the answer of the parser; None accepts the model."""
    return HANDLERS["onnx"].make_partition(blob(product(), 17), 20, lambda model: refusal)  # type: ignore[arg-type, return-value]


def test_the_whole_model_is_one_partition() -> None:
    partitioned = partition(None)
    (part,) = partitioned.document.partitions
    assert (part.name, part.kind, part.weights, part.calls) == ("model", "tensorrt", (0,), (0, 1))
    assert part.inputs == (("input:0", INPUT),)
    assert [type_.shape for type_ in part.outputs] == [OUTPUT_SHAPE]
    assert partitioned.document.outputs == ("model:0",)
    assert HANDLERS["onnx"].origins(partitioned.model) == [("n0", 0), ("n1", 1)]


def test_a_refusal_names_the_users_nodes() -> None:
    class Refusal:
        nodes = ("n1",)
        messages = ("n1: MatMul: UNSUPPORTED_NODE: no",)

    with pytest.raises(ConversionRefused, match=r"refuses node 'product': product: MatMul: UNSUPPORTED_NODE: no"):
        partition(Refusal())
