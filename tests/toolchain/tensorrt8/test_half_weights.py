"""Weights that a graph casts to half become weights in half. The results stay the same, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper as h
from onnx import numpy_helper

from trtbuild.toolchain.onnx_files.onnx_outline import read_outline
from trtbuild.toolchain.tensorrt8.half_weights import cast_weights

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def cast(model: bytes, weights: Sequence[np.ndarray]) -> tuple[bytes, dict[str, bytes]]:
    new_model, new_weights = cast_weights(model, {f"w{k}": value.tobytes() for k, value in enumerate(weights)})
    return new_model, {name: bytes(data) for name, data in new_weights.items()}


def with_weights(model: bytes, weights: Mapping[str, bytes]) -> onnx.ModelProto:
    """`model` with its external weights stored in the model."""
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            assert [(entry.key, entry.value) for entry in tensor.external_data] == [("location", tensor.name)]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name]
    return proto


def compute_outputs(model: bytes, weights: Mapping[str, bytes], *inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(with_weights(model, weights).SerializeToString())
    return session.run(None, {f"i{k}": value for k, value in enumerate(inputs)})  # type: ignore[no-any-return]


def half_and_float_model(make_model: Any) -> tuple[bytes, list[np.ndarray]]:
    """A model and its weights. w0 is used in half, w1 in half and in float32, w2 in float32. w3 is already half."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(3)]
    weights.append(random.standard_normal(8).astype(np.float16))
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=HALF),
        h.make_node("Cast", ["w0"], ["v1"], to=HALF),
        h.make_node("MatMul", ["v0", "v1"], ["v2"]),
        h.make_node("Cast", ["w1"], ["v3"], to=HALF),
        h.make_node("Add", ["v2", "v3"], ["v4"]),
        h.make_node("Add", ["v4", "w3"], ["v5"]),
        h.make_node("Cast", ["v5"], ["v6"], to=FLOAT),
        h.make_node("Add", ["v6", "w1"], ["v7"]),
        h.make_node("Mul", ["v7", "w2"], ["o0"]),
    ]
    return make_model(nodes, [("FLOAT", [8, 8])], ["FLOAT"], weights), weights


def test_removes_the_casts_and_keeps_the_results(make_model: Any) -> None:
    model, weights = half_and_float_model(make_model)
    new_model, new_weights = cast(model, weights)
    value = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    before = compute_outputs(model, {f"w{k}": weight.tobytes() for k, weight in enumerate(weights)}, value)
    assert np.array_equal(compute_outputs(new_model, new_weights, value)[0], before[0])
    outline = read_outline(new_model)
    assert [node.name for node in outline.nodes] == ["n0", "n2", "n4", "n5", "n6", "n7", "n8"]
    assert dict(outline.initializers) == {"w1": FLOAT, "w2": FLOAT, "w3": HALF, "v1": HALF, "v3": HALF}
    assert {weight.name: (weight.shape, weight.size_bytes) for weight in outline.weights} == {
        "w1": ((8, 8), 256),
        "w2": ((8, 8), 256),
        "v1": ((8, 8), 128),
        "v3": ((8, 8), 128),
        "w3": ((8,), 16),
    }
    assert set(new_weights) == {"w1", "w2", "w3", "v1", "v3"}  # no node reads w0


def test_rounds_to_nearest_even_and_to_infinity(make_model: Any) -> None:
    half_step = 2.0**-11  # half of the distance from 1 to the next float16
    weight = np.array(
        [1 + half_step, 1 + 3 * half_step, 65519, 65520, -1e30, 1e-8, 6e-8, -0.0, np.inf, np.nan], np.float32
    )
    nodes = [h.make_node("Cast", ["w0"], ["v0"], to=HALF), h.make_node("Identity", ["v0"], ["o0"])]
    model = make_model(nodes, [], ["FLOAT16"], [weight])
    new_model, new_weights = cast(model, [weight])
    rounded, expected = compute_outputs(new_model, new_weights)[0], compute_outputs(model, {"w0": weight.tobytes()})[0]
    # the last value is NaN, which has many bit patterns
    assert rounded[:-1].tobytes() == expected[:-1].tobytes() and np.isnan(rounded[-1]) and np.isnan(expected[-1])
    assert rounded[:5].tolist() == [1, 1 + 4 * half_step, 65504, np.inf, -np.inf]


def test_keeps_a_cast_that_is_an_output(make_model: Any) -> None:
    weight = np.arange(4, dtype=np.float32)
    nodes = [h.make_node("Cast", ["w0"], ["o0"], to=HALF)]
    model = make_model(nodes, [], ["FLOAT16"], [weight])
    assert cast(model, [weight]) == (model, {"w0": weight.tobytes()})


@pytest.mark.parametrize(("dtype", "to"), [("float64", HALF), ("int32", HALF), ("float32", onnx.TensorProto.BFLOAT16)])
def test_keeps_casts_that_are_not_from_float32_to_float16(dtype: str, to: int, make_model: Any) -> None:
    weight = np.arange(4).astype(dtype)
    nodes = [h.make_node("Cast", ["w0"], ["v0"], to=to), h.make_node("Cast", ["v0"], ["o0"], to=FLOAT)]
    model = make_model(nodes, [], ["FLOAT"], [weight])
    assert cast(model, [weight]) == (model, {"w0": weight.tobytes()})


def test_keeps_the_cast_of_a_constant_inside_the_model(make_model: Any) -> None:
    constants = {"c0": np.arange(4, dtype=np.float32)}
    nodes = [h.make_node("Cast", ["c0"], ["v0"], to=HALF), h.make_node("Identity", ["v0"], ["o0"])]
    model = make_model(nodes, [], ["FLOAT16"], [], constants)
    assert cast(model, []) == (model, {})


def test_keeps_weights_that_a_nested_graph_reads(make_model: Any) -> None:
    """One branch reads the weight and the result of the outer cast. The other branch casts the weight. Both branches keep
    their casts."""
    weight = np.arange(4, dtype=np.float32)
    then = h.make_graph(
        [h.make_node("Cast", ["v0"], ["t0"], to=FLOAT), h.make_node("Add", ["t0", "w0"], ["r0"])],
        "then",
        [],
        [h.make_tensor_value_info("r0", FLOAT, [4])],
    )
    otherwise = h.make_graph(
        [h.make_node("Cast", ["w0"], ["t1"], to=HALF), h.make_node("Cast", ["t1"], ["r1"], to=FLOAT)],
        "otherwise",
        [],
        [h.make_tensor_value_info("r1", FLOAT, [4])],
    )
    nodes = [
        h.make_node("Cast", ["w0"], ["v0"], to=HALF),
        h.make_node("If", ["i0"], ["o0"], then_branch=then, else_branch=otherwise),
    ]
    model = make_model(nodes, [("BOOL", [])], ["FLOAT"], [weight])
    new_model, new_weights = cast(model, [weight])
    assert set(new_weights) == {"w0", "v0"}
    assert [node.operator for node in read_outline(new_model).nodes] == ["If"]
    for choice in (True, False):
        before = compute_outputs(model, {"w0": weight.tobytes()}, np.array(choice))
        assert np.array_equal(compute_outputs(new_model, new_weights, np.array(choice))[0], before[0])


def test_keeps_everything_else_in_the_model(make_model: Any) -> None:
    model, weights = half_and_float_model(make_model)
    proto = onnx.ModelProto.FromString(model)
    proto.metadata_props.add(key="said", value="by somebody")
    proto.graph.doc_string = "a graph"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1.5), "c0"))
    new_model = onnx.ModelProto.FromString(cast(proto.SerializeToString(), weights)[0])
    for part in (proto, new_model):
        del part.graph.node[:]
        del part.graph.initializer[:]
    assert new_model == proto


@pytest.mark.parametrize("shape", [(), (0,), (1,), (300, 2)])
def test_casts_weights_of_any_shape(shape: tuple[int, ...], make_model: Any) -> None:
    weight = np.ones(shape, np.float32)
    nodes = [h.make_node("Cast", ["w0"], ["v0"], to=HALF), h.make_node("Identity", ["v0"], ["o0"])]
    new_model, new_weights = cast(make_model(nodes, [], ["FLOAT16"], [weight]), [weight])
    assert new_weights == {"v0": np.ones(shape, np.float16).tobytes()}
    assert np.array_equal(compute_outputs(new_model, new_weights)[0], np.ones(shape, np.float16))
