"""A batch normalization in half precision becomes a factor and a term, or is computed in float32."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper as h

from trtbuild.core.model.spec import ShapeRange
from trtbuild.stages.verify.onnx_models.narrow import convert_to_float32
from trtbuild.toolchain.compiling.compiler import compile_engine
from trtbuild.toolchain.compiling.preparing import prepare_model
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.onnx_files.onnx_outline import read_outline
from trtbuild.toolchain.tensorrt8.half_norms import _bfloat16_bits, rewrite_norms

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
CHANNELS = 8


def parameters(**changes: Any) -> list[np.ndarray]:
    """Scale, shift, mean and variance as arrays; `changes` replace some of them."""
    random = np.random.default_rng(0)
    by_name = {
        "scale": random.uniform(0.5, 1.5, CHANNELS),
        "shift": random.standard_normal(CHANNELS),
        "mean": random.standard_normal(CHANNELS),
        "variance": random.uniform(0.5, 2, CHANNELS),
    }
    return [np.asarray(value, np.float32) for value in (by_name | changes).values()]


def normalization(make_model: Any, values: Sequence[np.ndarray], dtype: int = HALF, **attributes: Any) -> bytes:
    """A model that casts its input to `dtype`, normalizes it with the parameters `values`, and applies Relu."""
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=dtype),
        h.make_node("BatchNormalization", ["v0", "w0", "w1", "w2", "w3"], ["v1"], **attributes),
        h.make_node("Relu", ["v1"], ["v2"]),
        h.make_node("Cast", ["v2"], ["o0"], to=FLOAT),
    ]
    return make_model(nodes, [("FLOAT", ["n", CHANNELS, 4, 4])], ["FLOAT"], values)  # type: ignore[no-any-return]


def rewrite(model: bytes, values: Sequence[np.ndarray]) -> tuple[bytes, dict[str, bytes]]:
    new_model, weights = rewrite_norms(model, {f"w{k}": value.tobytes() for k, value in enumerate(values)})
    return new_model, {name: bytes(data) for name, data in weights.items()}


def compute_output(model: bytes, weights: Mapping[str, bytes], *inputs: np.ndarray) -> np.ndarray:
    """Run a model with onnxruntime, and round to half after each node (`convert_to_float32`)."""
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name]
    session = onnxruntime.InferenceSession(convert_to_float32(proto).SerializeToString())
    return session.run(None, {f"i{k}": value for k, value in enumerate(inputs)})[0]  # type: ignore[no-any-return]


def images() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((3, CHANNELS, 4, 4)).astype(np.float32)


def operators(model: bytes) -> list[str]:
    return [node.operator for node in read_outline(model).nodes]


@pytest.mark.parametrize("attributes", [{}, {"epsilon": 1e-3}, {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}])
def test_a_factor_and_a_term_in_half_give_nearly_the_same_results(make_model: Any, attributes: dict[str, Any]) -> None:
    values = parameters(variance=np.full(CHANNELS, 1e-3))  # so small that epsilon matters
    model = normalization(make_model, values, **attributes)
    new_model, weights = rewrite(model, values)
    assert operators(new_model) == operators(model)
    assert set(weights) == {"v1.factor", "v1.term", "v1.mean", "v1.variance"}
    assert dict(read_outline(new_model).initializers) == dict.fromkeys(weights, HALF)
    before, after = (compute_output(*pair, images()) for pair in ((model, _bytes(values)), (new_model, weights)))
    assert np.abs(after - before).max() / np.abs(before).max() < 2e-3


def _bytes(values: Sequence[np.ndarray]) -> dict[str, bytes]:
    return {f"w{k}": value.tobytes() for k, value in enumerate(values)}


def test_the_term_corrects_the_rounding_of_the_factor(make_model: Any) -> None:
    """The normalization maps the mean, 500, to the shift, 0. Rounding the factor changes ``factor * 500``. A term computed
    with the unrounded factor would not correct this.

    The bound is 0.25, because float16 has steps of 0.25 near 500.
    """
    values = parameters(scale=np.full(CHANNELS, 1.0003), mean=np.full(CHANNELS, 500.0), shift=np.zeros(CHANNELS))
    _, weights = rewrite(normalization(make_model, values), values)
    factor, term = (np.frombuffer(weights[f"v1.{part}"], np.float16).astype(np.float64) for part in ("factor", "term"))
    assert np.abs(factor * 500 + term).max() <= 0.25


@pytest.mark.parametrize(
    "changes",
    [
        {"variance": np.full(CHANNELS, 1e13)},  # a subnormal factor
        {"variance": np.zeros(CHANNELS), "scale": np.full(CHANNELS, 1e6)},  # an infinite factor
        {"mean": np.full(CHANNELS, 1e6)},  # an infinite term
        {"shift": np.full(CHANNELS, np.nan)},
    ],
)
def test_values_outside_the_range_of_half_stay_in_float32(make_model: Any, changes: dict[str, Any]) -> None:
    values = parameters(**changes)
    model = normalization(make_model, values)
    new_model, weights = rewrite(model, values)
    assert operators(new_model) == ["Cast", "Cast", "BatchNormalization", "Cast", "Relu", "Cast"]
    assert weights == _bytes(values)
    before, after = (compute_output(*pair, images()) for pair in ((model, _bytes(values)), (new_model, weights)))
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    ("toolchain", "version", "has_scale_layer"),
    [
        ("tensorrt-rtx", "1.7.1.116", True),
        ("tensorrt", "11.0.0", True),
        ("tensorrt", "10.0.1", True),
        ("tensorrt", "9.3.0", False),
    ],
)
def test_uses_a_scale_layer_for_releases_that_support_it(
    make_model: Any, toolchain: Any, version: str, has_scale_layer: bool
) -> None:
    values = parameters()
    new_model, _ = prepare_model(normalization(make_model, values), _bytes(values), release(toolchain, version))
    assert operators(new_model).count("Cast") == (2 if has_scale_layer else 4)


def test_does_not_change_models_for_weakly_typed_releases(make_model: Any) -> None:
    values = parameters()
    model = normalization(make_model, values)
    assert prepare_model(model, _bytes(values), release("tensorrt", "8.6.1")) == (model, _bytes(values))


def test_a_channel_with_scale_zero_has_factor_zero(make_model: Any) -> None:
    values = parameters(scale=np.zeros(CHANNELS))
    model = normalization(make_model, values)
    new_model, weights = rewrite(model, values)
    assert not np.frombuffer(weights["v1.factor"], np.float16).any()
    assert operators(new_model) == operators(model)


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [(FLOAT, np.float32), (HALF, np.float16)])
def test_does_not_change_a_normalization_whose_parameters_have_its_type(
    make_model: Any, dtype: int, numpy_dtype: Any
) -> None:
    values = [value.astype(numpy_dtype) for value in parameters()]
    model = normalization(make_model, values, dtype)
    assert rewrite(model, values) == (model, _bytes(values))


def test_a_normalization_with_mixed_types_or_inline_parameters_is_computed_in_float32(make_model: Any) -> None:
    """In the first model, scale and shift are half, mean and variance float32. The second model contains its parameters as
    constants."""
    scale, shift, mean, variance = parameters()
    values = [scale.astype(np.float16), shift.astype(np.float16), mean, variance]
    model = normalization(make_model, values)
    new_model, weights = rewrite(model, values)
    assert operators(new_model).count("Cast") == 6 and weights == _bytes(values)
    np.testing.assert_array_equal(
        compute_output(new_model, weights, images()), compute_output(model, weights, images())
    )
    constants = dict(zip(("c0", "c1", "c2", "c3"), parameters(), strict=True))
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=HALF),
        h.make_node("BatchNormalization", ["v0", *constants], ["v1"]),
        h.make_node("Cast", ["v1"], ["o0"], to=FLOAT),
    ]
    model = make_model(nodes, [("FLOAT", ["n", CHANNELS, 4, 4])], ["FLOAT"], [], constants)
    new_model, weights = rewrite(model, [])
    assert operators(new_model) == ["Cast", "Cast", "BatchNormalization", "Cast", "Cast"] and not weights
    np.testing.assert_array_equal(
        compute_output(new_model, weights, images()), compute_output(model, weights, images())
    )


def test_keeps_parameters_that_another_node_reads(make_model: Any) -> None:
    """Two normalizations share a scale, a mean and a variance. Another node reads the shift of the first."""
    values = [*parameters(), np.ones(CHANNELS, np.float32)]
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=HALF),
        h.make_node("BatchNormalization", ["v0", "w0", "w1", "w2", "w3"], ["v1"]),
        h.make_node("BatchNormalization", ["v1", "w0", "w4", "w2", "w3"], ["v2"]),
        h.make_node("Cast", ["v2"], ["v3"], to=FLOAT),
        h.make_node("ReduceSum", ["w1"], ["v4"], keepdims=0),
        h.make_node("Mul", ["v3", "v4"], ["o0"]),
    ]
    model = make_model(nodes, [("FLOAT", ["n", CHANNELS, 4, 4])], ["FLOAT"], values)
    new_model, weights = rewrite(model, values)
    new_names = {f"{v}.{part}" for v in ("v1", "v2") for part in ("factor", "term", "mean", "variance")}
    assert set(weights) == {"w1", *new_names} == {name for name, _ in read_outline(new_model).initializers}
    before, after = (compute_output(*pair, images()) for pair in ((model, _bytes(values)), (new_model, weights)))
    assert np.abs(after - before).max() / np.abs(before).max() < 3e-3


def test_rounds_bfloat16_like_pytorch() -> None:
    random = np.random.default_rng(0)
    values = np.concatenate(
        [
            random.standard_normal(1000),
            random.standard_normal(1000) * 1e30,
            [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38],
            np.arange(4096) / 4096 + 1,  # some of them are ties
        ]
    ).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    bits = _bfloat16_bits(values)
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(bits[~is_nan], expected[~is_nan])
    # NaN has many bit patterns
    assert np.isnan((bits[is_nan].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize("half", ["FLOAT16", "BFLOAT16"])
def test_the_engine_has_one_scale_layer(make_model: Any, make_job: Any, half: str) -> None:
    values = [np.random.default_rng(2).standard_normal((CHANNELS, 3, 3, 3)).astype(np.float32), *parameters()]
    dtype = onnx.TensorProto.DataType.Value(half)
    nodes = [
        h.make_node("Cast", ["i0"], ["v0"], to=dtype),
        h.make_node("Cast", ["w0"], ["v1"], to=dtype),
        h.make_node("Conv", ["v0", "v1"], ["v2"], pads=[1, 1, 1, 1]),
        h.make_node("BatchNormalization", ["v2", "w1", "w2", "w3", "w4"], ["v3"]),
        h.make_node("Cast", ["v3"], ["o0"], to=FLOAT),
    ]
    model = make_model(nodes, [("FLOAT", ["n", 3, 8, 8])], ["FLOAT"], values)
    job_and_blobs = make_job(model, values, [ShapeRange((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))])
    compiled = compile_engine(job_and_blobs.job, job_and_blobs.read)
    layers = json.loads(compiled.layers)["layers"]
    (scale,) = (layer for layer in layers if layer["name"] == "n3")
    assert scale["type"] == "scale" and scale["outputs"][0]["dtype"] == {"FLOAT16": "half", "BFLOAT16": "bf16"}[half]
