"""The layers of a weakly typed network get the types of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

from tests.toolchain import tensorrt86 as trt
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline
from trtbuild.toolchain.tensorrt8.float_types import float_types
from trtbuild.toolchain.tensorrt8.precision import constrain_layers, uses_half

FLOAT, HALF = trt.DataType.FLOAT, trt.DataType.HALF


def mixed(make_model: Any) -> bytes:
    """A model with a product in float16, a softmax and a comparison in float32, and a size."""
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=TensorProto.FLOAT16),
        h.make_node("Cast", ["w0"], ["v1"], to=TensorProto.FLOAT16),
        h.make_node("MatMul", ["v0", "v1"], ["v2"]),
        h.make_node("Cast", ["v2"], ["v3"], to=TensorProto.FLOAT),
        h.make_node("Softmax", ["v3"], ["v4"]),
        h.make_node("Shape", ["v4"], ["v5"]),
        h.make_node("Greater", ["v4", "c0"], ["v6"]),
        h.make_node("Where", ["v6", "v4", "c0"], ["v7"]),
        h.make_node("Reshape", ["v7", "v5"], ["o0"]),
    ]
    constants = {"c0": np.array(0.5, np.float32)}
    return make_model(nodes, [("FLOAT", ["d0", 8])], ["FLOAT"], [np.zeros((8, 8), np.float32)], constants)  # type: ignore[no-any-return]


def test_float_types_are_equal_to_those_of_onnx(make_model: Any) -> None:
    model = mixed(make_model)
    proto = onnx.ModelProto.FromString(model)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w0")
    weight.ClearField("data_location")
    weight.ClearField("external_data")
    weight.raw_data = bytes(8 * 8 * 4)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    types = float_types(read_outline(model))
    kinds = {
        value.name: value.type.tensor_type.elem_type for value in (*inferred.graph.value_info, *inferred.graph.output)
    }
    assert len(kinds) == 9  # the results of all nodes
    assert {name: kind for name, kind in kinds.items() if kind in (TensorProto.FLOAT, TensorProto.FLOAT16)} == {
        name: types[name] for name in types if name in kinds
    }


def test_does_not_set_the_fp16_flag_for_a_float32_graph(make_mlp: Any) -> None:
    model = read_outline(make_mlp()[0])
    config = trt.FakeConfig()
    constrain_layers(trt.MODULE, trt.FakeNetwork([]), config, model)
    assert config.flags == {trt.BuilderFlag.TF32}
    assert not uses_half(model) and uses_half(read_outline(make_mlp(dtype="float16")[0]))


def test_layers_that_compute_floats_have_the_precision_of_their_values(make_model: Any) -> None:
    tensors = {name: trt.FakeTensor(name) for name in ("i0", "v0", "v1", "v2", "v3", "v4", "v7", "o0", "x0", "x1")}
    sizes = trt.FakeTensor("v5", trt.DataType.INT32, is_shape_tensor=True)
    layers = {
        "cast": trt.FakeLayer("CAST", [tensors["i0"]], [tensors["v0"]]),
        "constant": trt.FakeLayer("CONSTANT", [], [tensors["v1"]]),
        "helper": trt.FakeLayer("ACTIVATION", [tensors["v0"]], [tensors["x0"]]),
        "product": trt.FakeLayer("MATRIX_MULTIPLY", [tensors["x0"], tensors["v1"]], [tensors["v2"]]),
        "softmax": trt.FakeLayer("SOFTMAX", [tensors["v3"]], [tensors["v4"]]),
        "size": trt.FakeLayer("SHAPE", [tensors["v4"]], [sizes]),
        "unknown": trt.FakeLayer("ELEMENTWISE", [trt.FakeTensor("unknown")], [tensors["x1"]]),
        "integers": trt.FakeLayer("ELEMENTWISE", [sizes], [trt.FakeTensor("x2", trt.DataType.INT32)]),
    }
    config = trt.FakeConfig()
    constrain_layers(trt.MODULE, trt.FakeNetwork([], list(layers.values())), config, read_outline(mixed(make_model)))
    assert {trt.BuilderFlag.FP16, trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS} <= config.flags
    assert {name: (layer.precision, layer.types) for name, layer in layers.items()} == {
        "cast": (None, {}),
        "constant": (None, {}),
        "helper": (HALF, {0: HALF}),
        "product": (HALF, {0: HALF}),
        "softmax": (FLOAT, {0: FLOAT}),
        "size": (None, {}),
        "unknown": (FLOAT, {0: FLOAT}),
        "integers": (None, {}),
    }


def test_constrains_layers_that_only_move_data_if_the_data_is_float32(make_model: Any) -> None:
    """Half values may be moved as float32, but float32 values must not be moved as half."""
    tensors = {name: trt.FakeTensor(name) for name in ("v2", "v3", "v4", "x0", "x1")}
    kinds = ("SHUFFLE", "SLICE", "CONCATENATION", "GATHER", "IDENTITY", "SELECT")
    halves = [trt.FakeLayer(kind, [tensors["v2"]], [tensors["x0"]]) for kind in kinds]
    floats = [trt.FakeLayer(kind, [tensors["v3"]], [tensors["x1"]]) for kind in kinds]
    next_layer = trt.FakeLayer("UNARY", [tensors["x0"]], [trt.FakeTensor("x2")])
    network = trt.FakeNetwork([], [*halves, *floats, next_layer])
    constrain_layers(trt.MODULE, network, trt.FakeConfig(), read_outline(mixed(make_model)))
    assert [(layer.precision, layer.types) for layer in halves] == [(None, {})] * len(kinds)
    assert [(layer.precision, layer.types) for layer in floats] == [(FLOAT, {0: FLOAT})] * len(kinds)
    assert (next_layer.precision, next_layer.types) == (HALF, {0: HALF})  # its input has the type of the moved data


def nested(branch: list[Any], result_type: int, input_type: int) -> bytes:
    """A model that returns the exponential of an If. The first branch has the nodes `branch`, which compute r0 from v0. The
    second branch casts v0. v0 is equal to the input i1."""
    branches = [
        h.make_graph(nodes, "nested", [], [h.make_tensor_value_info(name, result_type, [4])])
        for nodes, name in (
            (branch, "r0"),
            ([h.make_node("Cast", ["v0"], ["r1"], to=result_type)], "r1"),
        )
    ]
    graph = h.make_graph(
        [
            h.make_node("Identity", ["i1"], ["v0"]),
            h.make_node("If", ["i0"], ["v1"], then_branch=branches[0], else_branch=branches[1]),
            h.make_node("Exp", ["v1"], ["v2"]),
            h.make_node("Identity", ["v2"], ["o0"]),
        ],
        "partition",
        [h.make_tensor_value_info("i0", onnx.TensorProto.BOOL, []), h.make_tensor_value_info("i1", input_type, [4])],
        [h.make_tensor_value_info("o0", result_type, [4])],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("inside", "outside"), [(TensorProto.FLOAT16, TensorProto.FLOAT), (TensorProto.FLOAT, TensorProto.FLOAT16)]
)
def test_outputs_of_a_nested_graph_have_its_declared_type(inside: int, outside: int) -> None:
    casts = [h.make_node("Cast", ["v0"], ["t0"], to=inside), h.make_node("Cast", ["t0"], ["r0"], to=outside)]
    model = read_outline(nested(casts, outside, outside))
    assert {float_types(model)[name] for name in ("v0", "v1", "v2", "o0")} == {outside}
    assert uses_half(model)


def test_outputs_of_a_loop_have_the_type_of_its_body() -> None:
    """The first output of the body is the condition of the loop, not a result."""
    float32, float16, int64, boolean = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
    body_inputs = (("number", int64, []), ("condition", boolean, []), ("state", float16, [4]))
    body_outputs = (("next_condition", boolean, []), ("next_state", float16, [4]), ("scanned", float32, [4]))
    body = h.make_graph(
        [
            h.make_node("Identity", ["condition"], ["next_condition"]),
            h.make_node("Cast", ["state"], ["as_float"], to=TensorProto.FLOAT),
            h.make_node("Cast", ["as_float"], ["next_state"], to=TensorProto.FLOAT16),
            h.make_node("Identity", ["as_float"], ["scanned"]),
        ],
        "nested",
        [h.make_tensor_value_info(*value) for value in body_inputs],
        [h.make_tensor_value_info(*value) for value in body_outputs],
    )
    inputs = [
        h.make_tensor_value_info(*value) for value in (("i0", int64, []), ("i1", boolean, []), ("i2", float16, [4]))
    ]
    nodes = [h.make_node("Loop", ["i0", "i1", "i2"], ["v0", "v1"], body=body), h.make_node("Exp", ["v0"], ["o0"])]
    graph = h.make_graph(nodes, "partition", inputs, [h.make_tensor_value_info("o0", float16, [4])])
    types = float_types(read_outline(h.make_model(graph).SerializeToString()))
    assert (types["v0"], types["v1"]) == (float16, float32)


def test_layers_after_a_cast_in_a_nested_graph_have_its_type() -> None:
    """Values of a nested graph have no type in the outer graph."""
    casts = [h.make_node("Cast", ["v0"], ["t0"], to=TensorProto.FLOAT), h.make_node("Exp", ["t0"], ["t1"])]
    model = read_outline(
        nested(
            [*casts, h.make_node("Cast", ["t1"], ["r0"], to=TensorProto.FLOAT16)],
            TensorProto.FLOAT16,
            TensorProto.FLOAT16,
        )
    )
    values = (("v0", HALF), ("t0", FLOAT), ("t1", FLOAT), ("r0", HALF))
    half, as_float, exponential, as_half = (trt.FakeTensor(name, dtype) for name, dtype in values)
    layers = [
        trt.FakeLayer("CAST", [half], [as_float]),
        trt.FakeLayer("UNARY", [as_float], [exponential]),
        trt.FakeLayer("CAST", [exponential], [as_half]),
        trt.FakeLayer("UNARY", [as_half], [trt.FakeTensor("t2", HALF)]),
    ]
    constrain_layers(trt.MODULE, trt.FakeNetwork([], layers), trt.FakeConfig(), model)
    assert [(layer.precision, layer.types) for layer in layers] == [
        (None, {}),
        (FLOAT, {0: FLOAT}),
        (None, {}),
        (HALF, {0: HALF}),
    ]
