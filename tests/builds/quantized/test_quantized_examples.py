"""The examples of manifests/quantized: each kind of quantized model, and each format for GPUs that support it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import trtbuild
from tests.builds.quantized.conftest import EXAMPLES
from tests.conftest import CommandLine

INT8, FP8, INT4 = {"INT8": 1}, {"FLOAT8E4M3FN": 1}, {"INT4": 0.5}
#: NVFP4 has one float8 scale for each block of 16 numbers.
NVFP4 = {"FLOAT4E2M1": 0.5, "FLOAT8E4M3FN": 1 / 16}
#: The ONNX model has float weights and their quantizers, and TensorRT rounds the weights.
FLOATS: dict[str, float] = {}

#: Model → the types in which its ONNX model stores the weight of the middle layer: type → bytes per element of the weight.
STORED: dict[str, dict[str, float]] = {
    "fake_quantized": FLOATS,
    "trained_with_qat": FLOATS,
    "pt2e": INT8,
    "pt2e_program": INT8,
    "modelopt_int8": FLOATS,
    "modelopt_fp8": FP8,
    "modelopt_int4": INT4,
    "modelopt_nvfp4": NVFP4,
    "onnxruntime_int8": INT8,
    "modelopt_fp8_file": FLOATS,
    "int4_file": INT4,
    "fp4_file": NVFP4,
    "int8": FLOATS,
    "int8_entropy": FLOATS,
    "int8_smoothquant": FLOATS,
    "fp8": FP8,
    "int8_weight_only": INT8,
    "int4_weight_only": INT4,
    "int4_awq": INT4,
    "nvfp4": NVFP4,
}
#: Models that come as ONNX files.
FILES = ("onnxruntime_int8", "modelopt_fp8_file", "int4_file", "fp4_file")
#: Models with `quantize:`, which the build quantizes.
QUANTIZED_BY_BUILD = (
    "int8",
    "int8_entropy",
    "int8_smoothquant",
    "fp8",
    "int8_weight_only",
    "int4_weight_only",
    "int4_awq",
    "nvfp4",
)
#: The shapes of the middle layer's weight and of its NVFP4 scales, in both orders.
SHAPES = ([64, 256], [256, 64], [64, 16], [16, 64])


@pytest.mark.parametrize("model", STORED)
def test_each_model_is_one_engine_for_each_gpu(quantized_examples: CommandLine, model: str) -> None:
    written = quantized_examples.project / "written" / model
    document = quantized_examples("inspect", model, "--onnx", str(written))
    index = document["index"]
    assert [engine["partition"] for engine in document["engines"]] == ["model"] * len(index["targets"])
    assert "blackwell" in index["targets"] and index["quantized"]
    for target, entry in index["targets"].items():
        assert [part["kind"] for part in entry["partitions"]["partitions"]] == ["tensorrt"]
        graph = onnx.load(written / target / "model.onnx").graph
        assert {node.domain for node in graph.node} == {""}
        assert "DequantizeLinear" in {node.op_type for node in graph.node}
        stored = {
            onnx.TensorProto.DataType.Name(tensor.data_type): len(tensor.raw_data) / (64 * 256)
            for tensor in graph.initializer
            if list(tensor.dims) in SHAPES and tensor.data_type != onnx.TensorProto.FLOAT
        }
        assert stored == STORED[model]


def test_verify_finds_no_model_wrong_and_reports_the_error_against_the_float_model(
    quantized_examples: CommandLine,
) -> None:
    # With --frozen, the float model is not traced. `cuts`: one comparison for each way to divide the model into partitions.
    (frozen,) = quantized_examples("build", "int4_weight_only", "--verify", "--frozen")["verification"]["models"]
    assert frozen["cuts"][0]["float_error"]["unknown"].endswith("--frozen is set, and the cache does not have it")

    models = {model["model"]: model for model in quantized_examples("verify")["models"]}
    statuses = {name: model["status"] for name, model in models.items()}
    # without a GPU, nothing is compared for an ONNX file
    assert statuses == {name: "unchecked" if name in FILES else "right" for name in STORED}

    errors = {name: models[name]["cuts"][0]["float_error"] for name in QUANTIZED_BY_BUILD}
    assert {error["unknown"] for error in errors.values()} == {""}
    largest = {name: error["outputs"][0]["largest"] for name, error in errors.items()}
    assert 1e-3 < largest["int8_weight_only"] < largest["int4_weight_only"] < largest["nvfp4"] < 0.5
    assert 1e-3 < largest["int8"] < largest["fp8"] < 0.3


def test_max_error_limits_the_error_against_the_float_model(quantized_examples: CommandLine) -> None:
    names = ("int8_weight_only", "int4_weight_only")
    errors = [
        model["cuts"][0]["float_error"]["outputs"][0]["largest"]
        for model in quantized_examples("verify", *names)["models"]
    ]
    limit = sum(errors) / 2
    right, wrong = quantized_examples("verify", *names, "--max-error", str(limit), expect=1)["models"]
    assert (right["ok"], right["cuts"][0]["verdict"], right.get("exceeds")) == (True, "hit", None)
    assert wrong["exceeds"] == (
        f"the error against the float model is {errors[1]:.1e}, but --max-error allows {limit:.1e}"
    )


def test_an_unknown_error_exceeds_every_limit(quantized_examples: CommandLine) -> None:
    (model,) = quantized_examples("verify", "pt2e", "--max-error", "1", expect=1)["models"]
    assert "unknown for weights, whose floats trtbuild does not have (int8); to know it" in model["exceeds"]
    assert 0 < model["cuts"][0]["float_error"]["outputs"][0]["largest"] < 1
    (file,) = quantized_examples("verify", "int4_file", "--max-error", "1", expect=1)["models"]
    assert (file["status"], file["cuts"]) == ("unchecked", [])
    assert "nothing was compared; an ONNX file" in file["exceeds"]


@pytest.mark.parametrize("model", ["onnxruntime_int8", "int4_file"])
def test_the_model_of_the_engine_computes_what_the_file_does(
    quantized_examples: CommandLine, example_nets: Any, model: str
) -> None:
    """onnxruntime runs the ONNX file, and the ONNX model from which the engine is built.

    It cannot run the other two files, which have operators of the domain `trt` or weights of type float4e2m1.
    """
    written = quantized_examples.project / "written" / f"{model}_again"
    quantized_examples("inspect", model, "--onnx", str(written))
    options = onnxruntime.SessionOptions()  # with optimizations, onnxruntime would compute with integers
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    results = []
    for file in (EXAMPLES / "files" / f"{model.removesuffix('_file')}.onnx", written / "blackwell" / "model.onnx"):
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        results += session.run(None, {session.get_inputs()[0].name: example_nets.images(1)[0].numpy()})
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("model", ["fake_quantized", "trained_with_qat"])
def test_a_package_computes_what_the_quantized_module_does(
    quantized_examples: CommandLine, example_nets: Any, model: str
) -> None:
    package = trtbuild.load(quantized_examples.project / "dist" / model, device="cpu")
    image = example_nets.images(1)[0]
    with torch.no_grad():
        torch.testing.assert_close(package.module()(image), getattr(example_nets, model)()(image), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "model", [name for name in STORED if name not in ("fake_quantized", "trained_with_qat", *FILES)]
)
def test_a_quantized_model_is_close_to_the_float_model(
    quantized_examples: CommandLine, example_nets: Any, model: str
) -> None:
    package = trtbuild.load(quantized_examples.project / "dist" / model, device="cpu")
    image = example_nets.images(1)[0]
    with torch.no_grad():
        expected = example_nets.classifier()(image)
        error = (package.module()(image) - expected).abs().max() / expected.abs().max()
    assert 1e-4 < error < 0.3
