"""Networks that trtbuild records and replays with TensorRT-RTX."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import ShapeRange, Target
from trtbuild.core.partition import network_document
from trtbuild.core.partition.network_document import NotRecorded
from trtbuild.errors import ToolchainError
from trtbuild.toolchain.compiling.compiler import compile_engine
from trtbuild.toolchain.libraries.library import capture_log, load
from trtbuild.toolchain.libraries.releases import release
from trtbuild.toolchain.libraries.table import installed_version
from trtbuild.toolchain.networks.network import create_network
from trtbuild.toolchain.networks.recording import NetworkInput, RecordedNetwork, record_network
from trtbuild.toolchain.networks.replaying import ReplayedNetwork, weight_names

IMAGE = NetworkInput("image", "float32", ("d0", 3, "d1", "d2"))
RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)

Define = Callable[[Any, Any], object]


def record(define: Define, inputs: Sequence[NetworkInput] = (IMAGE,)) -> RecordedNetwork:
    """Record `define`, without a comparison of its inputs with a manifest."""
    return record_network(define, inputs, check=lambda name, dtype, sizes: None)


def convolution(network: Any, trt: Any, *, kernel: Any = KERNEL) -> Any:
    """Add the input `IMAGE` and a convolution of it. Returns the layer."""
    x = network.add_input("image", trt.float32, (-1, 3, -1, -1))
    layer = network.add_convolution_nd(x, 4, (3, 3), kernel, trt.Weights(np.ones(4, np.float32)))
    layer.stride_nd = (2, 2)
    layer.padding_nd = trt.Dims([1, 1])
    layer.name = "stem"
    return layer


def detector(network: Any, trt: Any) -> None:
    """Define a network that concatenates features of two scales, and transposes them. The outputs are the result in float32
    and in float16."""
    fine = convolution(network, trt).get_output(0)
    activation = network.add_activation(fine, trt.ActivationType.LEAKY_RELU)
    activation.alpha = 0.1
    pooled = network.add_pooling_nd(activation.get_output(0), trt.PoolingType.MAX, (2, 2))
    pooled.stride_nd = (2, 2)
    up = network.add_resize(pooled.get_output(0))
    up.set_input(0, pooled.get_output(0))
    up.resize_mode = trt.InterpolationMode.NEAREST
    up.scales = [1, 1, 2, 2]
    joined = network.add_concatenation([activation.get_output(0), up.get_output(0)])
    joined.axis = 1
    transposed = network.add_shuffle(joined.get_output(0))
    transposed.first_transpose = trt.Permutation([0, 2, 3, 1])
    half = network.add_cast(transposed.get_output(0), trt.float16)
    transposed.get_output(0).name = "boxes"
    network.mark_output(transposed.get_output(0))
    network.mark_output(half.get_output(0))  # without a name


def job_and_blobs(recording: RecordedNetwork, *profiles: Sequence[ShapeRange]) -> tuple[EngineJob, dict[str, bytes]]:
    """A job that compiles a recording for SM 89, and its blobs by name."""
    blobs = {"network": recording.document}
    weights = []
    for value in recording.weights:
        sha256 = hashlib.sha256(value.tobytes()).hexdigest()
        blobs[sha256] = value.tobytes()
        weights.append(Weight(str(value.dtype), value.shape, sha256))
    version = installed_version("tensorrt-rtx")
    assert version is not None
    job = EngineJob(
        "network", tuple(weights), tuple(map(tuple, profiles)), BuilderSettings(), Target("ada", 89), version
    )
    return job, blobs


RANGE = ShapeRange((1, 3, 32, 32), (2, 3, 64, 64), (4, 3, 128, 96))


def test_records_all_calls() -> None:
    recording = record(detector)
    document = network_document.parse(recording.document)
    assert document["inputs"] == [["FLOAT", ["d0", 3, "d1", "d2"]]]
    assert document["weights"] == [["float32", KERNEL.size], ["float32", 4]]
    calls = [entry.get("call") or f"set {entry['set']}" for entry in document["calls"]]
    assert calls == [
        *("add_convolution_nd", "set stride_nd", "set padding_nd"),
        *("add_activation", "set alpha"),
        *("add_pooling_nd", "set stride_nd"),
        *("add_resize", "set_input", "set resize_mode", "set scales"),
        *("add_concatenation", "set axis"),
        *("add_shuffle", "set first_transpose"),
        "add_cast",
    ]
    assert document["calls"][3]["args"] == [{"output": [0, 0]}, {"enum": ["ActivationType", "LEAKY_RELU"]}]
    assert document["calls"][4]["value"] == {"float": (0.1).hex()}
    assert document["outputs"] == [{"output": [5, 0]}, {"output": [6, 0]}]
    assert recording.layers[0] == ("stem", "convolution")
    assert recording.outputs[0] == ("boxes", "float32", (-1, -1, -1, 8))
    assert recording.outputs[1][:2] == ("output_1", "float16")


def test_the_document_contains_everything_except_names_and_weights() -> None:
    def named(name: str, stride: int, weight: float) -> Define:
        def define(network: Any, trt: Any) -> None:
            layer = convolution(network, trt, kernel=KERNEL * np.float32(weight))
            layer.stride_nd = (stride, stride)
            layer.name = name
            layer.get_output(0).name = f"{name}_out"
            network.mark_output(layer.get_output(0))

        return define

    first = record(named("a", 2, 1))
    assert record(named("b", 2, 1)).document == first.document
    assert record(named("a", 1, 1)).document != first.document
    heavier = record(named("a", 2, 2))
    assert heavier.document == first.document
    assert not np.array_equal(heavier.weights[0], first.weights[0])


def test_a_recording_compiles_to_an_engine_with_canonical_names() -> None:
    job, blobs = job_and_blobs(record(detector), [RANGE])
    compiled = compile_engine(job, blobs.__getitem__)
    assert compiled.plan.nbytes > 0
    layers = json.loads(compiled.layers)
    assert [entry["name"] for entry in layers["inputs"] + layers["outputs"]] == ["i0", "o0", "o1"]
    assert [entry["name"] for entry in layers["layers"]] == [f"n{number}" for number in range(7)]
    assert layers["inputs"][0]["shape"] == [-1, 3, -1, -1]


def test_records_the_values_of_weights_at_the_time_of_the_call() -> None:
    def define(network: Any, trt: Any) -> None:
        kernel = KERNEL.copy()
        layer = convolution(network, trt, kernel=kernel)
        kernel[:] = 0
        network.mark_output(layer.get_output(0))

    assert np.array_equal(record(define).weights[0], KERNEL)


def test_the_function_can_read_values_of_tensorrt() -> None:
    seen: dict[str, Any] = {}

    def define(network: Any, trt: Any) -> None:
        layer = convolution(network, trt)
        out = layer.get_output(0)
        seen.update(shape=tuple(out.shape), dtype=out.dtype, layers=network.num_layers, stride=tuple(layer.stride_nd))
        seen.update(
            same_layer=network.get_layer(0) is layer,
            same_input=layer.get_input(0) is network.get_input(0),
            kind=layer.type,
        )
        network.mark_output(out)
        seen.update(same_output=network.get_output(0) is out, input_name=network.get_input(0).name)

    record(define)
    trt = load("tensorrt-rtx")
    assert seen == {
        "shape": (-1, 4, -1, -1),
        "dtype": trt.float32,
        "layers": 1,
        "stride": (2, 2),
        "same_layer": True,
        "same_input": True,
        "kind": trt.LayerType.CONVOLUTION,
        "same_output": True,
        "input_name": "image",
    }


def test_the_layers_of_a_network_can_be_iterated_and_counted_from_the_end() -> None:
    """As in TensorRT. A loop over the layers ends with an IndexError."""
    seen: list[bool] = []

    def define(network: Any, trt: Any) -> None:
        first = convolution(network, trt)
        last = network.add_activation(first.get_output(0), trt.ActivationType.RELU)
        seen.append(list(network) == [first, last] and network[-1] is last and network[-2] is first)
        for index in (2, -3):
            with pytest.raises(IndexError):
                network[index]
        network.mark_output(last.get_output(0))

    record(define)
    assert seen == [True]


def test_an_attribute_that_tensorrt_lacks_is_an_attribute_error() -> None:
    def define(network: Any, trt: Any) -> None:
        assert convolution(network, trt).nothing_like_this

    with pytest.raises(AttributeError, match="nothing_like_this"):
        record(define)


def test_records_loops_and_conditions() -> None:
    def define(network: Any, trt: Any) -> None:
        x = network.add_input("x", trt.float32, (4,))
        loop = network.add_loop()
        count = network.add_constant((), np.array([3], np.int32)).get_output(0)
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        state = loop.add_recurrence(x)
        next_state = network.add_elementwise(state.get_output(0), x, trt.ElementWiseOperation.SUM)
        state.set_input(1, next_state.get_output(0))
        out = loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE)
        conditional = network.add_if_conditional()
        condition = network.add_constant((), np.array([True])).get_output(0)
        conditional.set_condition(condition)
        value = conditional.add_input(out.get_output(0)).get_output(0)
        twice = network.add_elementwise(value, value, trt.ElementWiseOperation.SUM).get_output(0)
        network.mark_output(conditional.add_output(twice, value).get_output(0))

    recording = record(define, [NetworkInput("x", "float32", (4,))])
    assert [entry.get("makes") for entry in network_document.parse(recording.document)["calls"]].count("scope") == 2
    job, blobs = job_and_blobs(recording, [ShapeRange((4,), (4,), (4,))])
    assert compile_engine(job, blobs.__getitem__).plan.nbytes > 0


def test_inputs_are_in_the_order_of_the_manifest() -> None:
    inputs = [NetworkInput("a", "float32", (2,)), NetworkInput("b", "float32", (2,))]

    def define(network: Any, trt: Any) -> None:
        b = network.add_input("b", trt.float32, (2,))
        a = network.add_input(name="a", dtype=trt.float32, shape=[2])
        network.mark_output(network.add_elementwise(a, b, trt.ElementWiseOperation.SUB).get_output(0))

    document = network_document.parse(record(define, inputs).document)
    assert document["calls"][0]["args"][:2] == [{"input": 0}, {"input": 1}]


def set_other_format(network: Any, trt: Any) -> None:
    image = network.add_input("image", trt.float32, (-1, 3, -1, -1))
    image.allowed_formats = 1 << int(trt.TensorFormat.LINEAR)  # the format of arrays
    image.allowed_formats = 1 << int(trt.TensorFormat.HWC)


def set_invalid_axis(network: Any, trt: Any) -> None:
    layer = network.add_concatenation([network.add_input("image", trt.float32, (-1, 3, -1, -1))] * 2)
    layer.axis = 9
    network.mark_output(layer.get_output(0))


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda network, trt: network.add_plugin_v3([], [], None), "plugin"),
        (lambda network, trt: network.mark_debug(None), "mark_debug cannot be recorded"),
        (lambda network, trt: convolution(network, trt), "no output is marked"),
        (lambda network, trt: None, "input 'image' of the manifest is not added"),
        (
            lambda network, trt: network.mark_output(network.add_input("image", trt.float32, (-1, 3, -1, -1))),
            "an input cannot be an output",
        ),
        (
            lambda network, trt: convolution(network, trt, kernel=KERNEL.astype(np.float64)),
            "weights of type float64 cannot be recorded",
        ),
        (
            lambda network, trt: network.mark_output(
                convolution(network, trt, kernel=KERNEL[:, :, :, :1]).get_output(0)
            ),
            "TensorRT says",
        ),
        (lambda network, trt: [convolution(network, trt), convolution(network, trt)], "input 'image' is added twice"),
        (lambda network, trt: setattr(convolution(network, trt).get_output(0), "location", 1), "cannot be recorded"),
        (set_invalid_axis, "TensorRT says"),
        (lambda network, trt: convolution(network, trt).get_output_type(5), "get_output_type: TensorRT says"),
        (
            lambda network, trt: convolution(network, trt).get_output(0).get_dimension_name(9),
            "get_dimension_name: TensorRT says",
        ),
        (set_other_format, "other formats cannot be recorded"),
        (lambda network, trt: network.builder, "builder returns a Builder, whose calls cannot be recorded"),
    ],
)
def test_rejects_networks_that_cannot_be_recorded(define: Define, message: str) -> None:
    with pytest.raises(NotRecorded, match=message):
        record(define)


def test_a_failed_call_is_not_recorded() -> None:
    failed_calls = []

    def define(network: Any, trt: Any) -> None:
        layer = convolution(network, trt)
        for call in (lambda: network.add_activation(no_such=1), lambda: setattr(layer, "stride_nd", "wide")):
            with pytest.raises(TypeError):
                call()
            failed_calls.append(call)
        network.mark_output(layer.get_output(0))

    job, blobs = job_and_blobs(record(define), [ShapeRange((1, 3, 8, 8), (1, 3, 8, 8), (2, 3, 8, 8))])
    assert len(failed_calls) == 2 and compile_engine(job, blobs.__getitem__).plan.nbytes > 0


def test_raises_the_errors_of_the_function() -> None:
    def define(network: Any, trt: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(define)


# -- replaying


def replay(document: bytes, weights: Sequence[np.ndarray], *, strongly_typed: bool = True) -> None:
    """Define a network of TensorRT-RTX from a document and its weights."""
    trt = load("tensorrt-rtx")
    version = installed_version("tensorrt-rtx")
    assert version is not None
    with capture_log(trt) as (logger, log):
        builder = trt.Builder(logger)
        with ReplayedNetwork(create_network(trt, builder, release("tensorrt-rtx", version)), log) as replayed:
            blobs = {f"w{slot}": value.tobytes() for slot, value in enumerate(weights)}
            replayed.define(trt, document, blobs, strongly_typed=strongly_typed)


def with_first_call(recording: RecordedNetwork, **changes: Any) -> bytes:
    """The document of a recording, with changes of its first call."""
    document = network_document.parse(recording.document)
    document["calls"][0].update(changes)
    del document["schema"]  # `to_bytes` adds the schema
    return network_document.to_bytes(**document)


def test_rejects_unsupported_calls_and_wrong_weights() -> None:
    recording = record(detector)
    with pytest.raises(ToolchainError, match="this toolchain has no add_wonder of INetworkDefinition"):
        replay(with_first_call(recording, call="add_wonder"), recording.weights)
    unknown_activation = recording.document.replace(b'"LEAKY_RELU"', b'"WONDER"')
    with pytest.raises(ToolchainError, match=r"has no ActivationType\.WONDER"):
        replay(unknown_activation, recording.weights)
    with pytest.raises(ToolchainError, match="refuses the recorded call of add_convolution_nd"):
        replay(with_first_call(recording, args=[{"input": 0}]), recording.weights)
    with pytest.raises(ToolchainError, match="were recorded, but 7 were found"):
        replay(recording.document, [np.zeros(7, np.float32), recording.weights[1]])


def test_replays_only_calls_that_can_be_recorded() -> None:
    recording = record(detector)
    for name in ("__class__", "get_input", "mark_output", "remove_tensor"):
        with pytest.raises(ToolchainError, match="this toolchain has no"):
            replay(with_first_call(recording, call=name, args=[]), recording.weights)


def test_a_weakly_typed_toolchain_refuses_float16_and_accepts_float32() -> None:
    recording = record(detector)
    with pytest.raises(ToolchainError, match="values of type HALF"):
        replay(recording.document, recording.weights, strongly_typed=False)

    def define_float32(network: Any, trt: Any) -> None:
        network.mark_output(convolution(network, trt).get_output(0))

    recording = record(define_float32)
    replay(recording.document, recording.weights, strongly_typed=False)
    assert weight_names(recording.document) == ["w0", "w1"]
