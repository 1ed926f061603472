"""Quantized models: programs and modules of PT2E, ``torch.fake_quantize``, and ONNX files of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from tests.projects.quantized import NETS, pt2e

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 16], opt: [4, 16], max: [8, 16]}}}
defaults: {inputs: {x: {}}, dims: {batch: x.0}, profiles: [rows], targets: [ada]}
models:
  program: {source: {exported_program: program.pt2}}
  module: {source: {python: "nets:quantized_by_pt2e"}}
  fake: {source: {python: "nets:fake_quantized"}, reference: true}
  file: {source: {onnx: file.onnx}}
  uneven: {source: {python: "nets:with_zero_points"}, reference: true}
"""


def quantized_file(**changes: Any) -> onnx.ModelProto:
    """A linear layer as onnxruntime's static quantizer writes it: int8 weights for each channel, and an int32 bias."""
    random = np.random.default_rng(0)
    scales = np.full(8, 0.01, np.float32)
    numbers = {
        "x_scale": np.float32(0.02),
        "zero": np.int8(0),
        "w": random.integers(-127, 128, (8, 16)).astype(np.int8),
        "w_scale": scales,
        "w_zero": np.zeros(8, np.int8),
        "b": random.integers(-2000, 2000, 8).astype(np.int32),
        "b_scale": scales * np.float32(0.02),
        "b_zero": np.zeros(8, np.int32),
        **changes,
    }
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "x_scale", "zero"], ["xq"], "x_quantize"),
        onnx.helper.make_node("DequantizeLinear", ["xq", "x_scale", "zero"], ["xd"], "x_dequantize"),
        onnx.helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], "w_dequantize", axis=0),
        onnx.helper.make_node("DequantizeLinear", ["b", "b_scale", "b_zero"], ["bd"], "b_dequantize", axis=0),
        onnx.helper.make_node("Gemm", ["xd", "wd", "bd"], ["y"], "linear", transB=1),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "file",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [value("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.numpy_helper.from_array(np.asarray(number), name) for name, number in numbers.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("quantized")
    folder = root / "project"
    folder.mkdir()
    (folder / "trtbuild.yaml").write_text(MANIFEST)
    (folder / "nets.py").write_text(NETS)
    onnx.save(quantized_file(), folder / "file.onnx")
    module, example = pt2e()
    sizes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=sizes), folder / "program.pt2")
    command = CommandLine(folder, root / "cache")
    command("build")
    return command


@pytest.mark.parametrize("model", ["program", "module", "fake", "file"])
def test_a_quantized_model_is_one_engine_with_quantizers(project: CommandLine, model: str) -> None:
    document = project("inspect", model, "--onnx", str(project.project / "written" / model))
    assert [engine["partition"] for engine in document["engines"]] == ["model"]
    assert {part["kind"] for part in document["index"]["targets"]["ada"]["partitions"]["partitions"]} == {"tensorrt"}
    graph = onnx.load(project.project / "written" / model / "ada" / "model.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert "QuantizeLinear" in kinds and kinds.count("DequantizeLinear") >= 2
    integers = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8 and tensor.dims]
    # an int8 weight stays an int8 weight; with fake_quantize, TensorRT quantizes the float weight
    assert any(list(tensor.dims)[1:] for tensor in integers) == (model != "fake")


def test_quantized_models_are_right(project: CommandLine) -> None:
    document = project("verify")
    statuses = {model["model"]: model["status"] for model in document["models"]}
    # without a GPU, nothing is compared for an ONNX file, or for a model that PyTorch runs entirely
    assert statuses == {
        "program": "right", "module": "right", "fake": "right", "file": "unchecked", "uneven": "unchecked"
    }  # fmt: skip


def test_a_zero_point_keeps_a_quantizer_in_pytorch(project: CommandLine) -> None:
    index = project("inspect", "uneven")["index"]
    parts = index["targets"]["ada"]["partitions"]["partitions"]
    assert {part["kind"] for part in parts} == {"torch"}
    shown = project.run("inspect", "uneven").stdout
    assert "zero point is not supported" in shown
    warning = "warning: uneven: quantizers stay in PyTorch: "
    lines = [line for line in project.run("build", "uneven").stdout.splitlines() if line.startswith("warning")]
    assert len(lines) == 1 and lines[0].startswith(warning) and "zero point is not supported" in lines[0]
    assert lines[0].endswith("; trtbuild inspect uneven shows where")


def test_a_package_with_quantizers_in_pytorch_runs(project: CommandLine) -> None:
    for model, function in (("fake", "fake_quantized"), ("uneven", "with_zero_points")):
        package = trtbuild.load(project.project / "dist" / model, device="cpu")
        x = torch.randn(3, 16)
        torch.testing.assert_close(package.module()(x), _module(project, function)(x))


def _module(project: CommandLine, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    namespace: dict[str, Any] = {}
    exec((project.project / "nets.py").read_text(), namespace)
    module: Callable[[torch.Tensor], torch.Tensor] = namespace[name]()
    return module


def test_another_scale_builds_the_engine_again(project: CommandLine) -> None:
    nets = project.project / "nets.py"
    before = nets.read_text()
    try:
        nets.write_text(before.replace("STEP = 0.02", "STEP = 0.03"))
        assert ran(project("build", "fake")) == {
            "trace": 1, "lower": 1, "partition": 1, "convert": 1, "engine": 1, "package": 1
        }  # fmt: skip
        nets.write_text(before + "\n# a comment\n")
        assert ran(project("build", "fake")) == {"trace": 1}
    finally:
        nets.write_text(before)
        project("build", "fake")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"zero": np.uint8(0)}, "node 'x_quantize' of file.onnx quantizes to uint8, but TensorRT's types are signed"),
        ({"zero": np.int8(3)}, "node 'x_quantize' of file.onnx has the zero point 3, but TensorRT's zero points are 0"),
    ],
)
def test_an_asymmetric_file_is_refused_with_the_options_of_onnxruntime(
    command_line: CommandLine, changes: dict[str, Any], problem: str
) -> None:
    lines = [line for line in MANIFEST.splitlines() if "python:" not in line and "program" not in line]
    (command_line.project / "trtbuild.yaml").write_text("\n".join(lines))
    onnx.save(quantized_file(**changes), command_line.project / "file.onnx")
    document = command_line("build", "file", expect=1)
    (error,) = document["errors"]
    assert error["text"] == problem and "ActivationSymmetric" in error["hint"]


def test_a_program_compiles_the_result_of_pt2e(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    module, example = pt2e()
    compiled = trtbuild.compile(
        module, [trtbuild.Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(8, 16))], target=89, device="cpu"
    )
    assert module.training and sum(compiled.report["totals"]["engine"].values()) == 1
    assert compiled(example).shape == (4, 8)


def test_the_error_against_the_float_model_is_reported_and_can_be_limited(project: CommandLine) -> None:
    (model,) = project("verify", "fake")["models"]
    (cut,) = model["cuts"]
    (output,) = cut["float_error"]["outputs"]
    assert output["output"] == 0 and 0 < output["mean"] < output["largest"] < 0.2
    assert cut["float_error"]["unknown"] == "" and "exceeds" not in model
    shown = project.run("verify", "fake", "--max-error", str(output["largest"] * 2))
    assert shown.returncode == 0 and f"output 0: {output['largest']:.1e} at most" in shown.stdout
    limit = output["largest"] / 2
    (model,) = project("verify", "fake", "--max-error", str(limit), expect=1)["models"]
    assert (model["ok"], model["status"], model["cuts"][0]["verdict"]) == (False, "right", "hit")
    assert model["exceeds"].endswith(f"--max-error allows {limit:.1e}")


def test_an_unknown_error_exceeds_every_limit(project: CommandLine) -> None:
    (model,) = project("verify", "module", "--max-error", "1", expect=1)["models"]
    assert "unknown for weights, whose floats trtbuild does not have (int8); to know it" in model["exceeds"]
    assert 0 < model["cuts"][0]["float_error"]["outputs"][0]["largest"] < 1
    (file,) = project("verify", "file", "--max-error", "1", expect=1)["models"]
    assert (file["status"], file["cuts"]) == ("unchecked", []) and "nothing was compared; an ONNX file" in file[
        "exceeds"
    ]
