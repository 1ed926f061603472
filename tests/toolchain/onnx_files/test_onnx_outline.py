"""`read_outline` returns the same nodes, weights and types of a model as the package onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper

from trtbuild.toolchain.onnx_files.onnx_outline import read_outline


def test_nodes_weights_and_types_are_equal_to_those_of_onnx(make_mlp: Any) -> None:
    model, weights = make_mlp()
    proto, outline = onnx.ModelProto.FromString(model), read_outline(model)
    assert [(n.name, n.operator, list(n.inputs), list(n.outputs)) for n in outline.nodes] == [
        (n.name, n.op_type, list(n.input), list(n.output)) for n in proto.graph.node
    ]
    assert [(w.name, w.size_bytes) for w in outline.weights] == [(f"w{k}", w.nbytes) for k, w in enumerate(weights)]
    assert outline.inputs == (("i0", onnx.TensorProto.FLOAT),)
    assert outline.outputs == (("o0", onnx.TensorProto.FLOAT),)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 300, 4)])
def test_returns_the_sizes_of_weights(dtype: str, shape: tuple[int, ...], make_model: Any) -> None:
    value = np.zeros(shape, dtype)
    (weight,) = read_outline(make_model([], [], [], [value])).weights
    assert weight.size_bytes == value.nbytes


def test_reads_dims_that_are_not_packed() -> None:
    # one field for each of the dims 2 and 300, then FLOAT, "w0", EXTERNAL
    tensor = b"\x08\x02\x08\xac\x02\x10\x01\x42\x02w0\x70\x01"
    proto = onnx.TensorProto.FromString(tensor)
    assert (list(proto.dims), proto.name) == ([2, 300], "w0")
    # fields of protobuf messages: 5 is GraphProto.initializer (tag 0x2a), 7 is ModelProto.graph (tag 0x3a)
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    (weight,) = read_outline(b"\x3a" + bytes([len(graph)]) + graph).weights
    assert weight.size_bytes == 2 * 300 * 4


def test_inline_constants_are_not_weights(make_model: Any) -> None:
    outline = read_outline(make_model([], [], [], [np.zeros(2, np.float32)], {"c0": np.zeros(3)}))
    assert [weight.name for weight in outline.weights] == ["w0"]
    assert outline.initializers == (("w0", onnx.TensorProto.FLOAT), ("c0", onnx.TensorProto.DOUBLE))


def test_a_node_has_the_inputs_and_types_of_its_nested_graphs(make_model: Any) -> None:
    inner = h.make_graph(
        [h.make_node("Cast", ["i0"], ["t"], to=onnx.TensorProto.DOUBLE), h.make_node("Add", ["t", "k"], ["r"])],
        "inner",
        [],
        [h.make_tensor_value_info("r", onnx.TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(np.array(1, np.int16), "k")],
    )
    model = make_model(
        [h.make_node("If", ["i1"], ["o0"], then_branch=inner)], [("FLOAT", [2]), ("BOOL", [])], ["DOUBLE"], []
    )
    (node,) = read_outline(model).nodes
    assert set(node.inputs) == {"i1", "i0", "t", "k"}
    assert set(node.attribute_types) == {onnx.TensorProto.DOUBLE, onnx.TensorProto.INT16}


@pytest.mark.parametrize("removed", [20, 40, 60])
def test_rejects_a_truncated_model(removed: int, make_mlp: Any) -> None:
    with pytest.raises(ValueError, match="cut off"):
        read_outline(make_mlp()[0][:-removed])


def test_rejects_int64_data_that_are_not_whole_numbers(make_model: Any) -> None:
    model = make_model([h.make_node("Squeeze", ["i0", "axes"], ["o0"])], [("FLOAT", [1])], ["FLOAT"], [])
    proto = onnx.ModelProto.FromString(model)
    seven_bytes = b"1234567"  # an int64 has eight
    proto.graph.initializer.add(name="axes", data_type=onnx.TensorProto.INT64, dims=[1], raw_data=seven_bytes)
    with pytest.raises(ValueError, match="an int64 tensor with 7 bytes of data"):
        read_outline(proto.SerializeToString())


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"])
def test_weights_of_eight_bits_have_a_size(name: str, make_mlp: Any) -> None:
    proto = onnx.ModelProto.FromString(make_mlp()[0])
    weight = next(t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
    weight.data_type = onnx.TensorProto.DataType.Value(name)
    sizes = {entry.name: entry.size_bytes for entry in read_outline(proto.SerializeToString()).weights}
    assert sizes[weight.name] == int(np.prod(weight.dims))
