"""Quantized models: what stays in PyTorch, refusals, the steps after an edit, and the error against the float model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran

NETS = '''
import torch
from torch import nn

from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout

STEP = 0.02


class Fake(nn.Module):
    """A linear layer as quantization-aware training leaves it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.register_buffer("scales", torch.full((8,), 0.01))
        self.register_buffer("zero_points", torch.zeros(8, dtype=torch.int32))

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, STEP, 0, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.linear.weight, self.scales, self.zero_points, 0, -127, 127)
        return nn.functional.linear(x, weight, self.linear.bias)


class ZeroPoints(nn.Module):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, STEP, 3, -128, 127) * 2


class Rounded(nn.Module):
    """A linear layer whose inputs are rounded to a type."""

    def __init__(self, layout, scale=0.01):
        super().__init__()
        self.round = Quantizer(layout, torch.tensor(scale))
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return self.linear(self.round(x))


def fake_quantized():
    torch.manual_seed(0)
    return Fake().eval()


def with_zero_points():
    return ZeroPoints().eval()


def fp8():
    return Rounded(QuantizerLayout("float8e4m3fn", None, 0)).eval()


def scale_of_zero():
    module = Fake()
    module.scales[3] = 0
    return module.eval()


def negative_scale():
    return Rounded(QuantizerLayout("int8", None, -128), -0.01).eval()


def nvfp4_inputs():
    return Rounded(QuantizerLayout("float4e2m1", None, 0, 16)).eval()
'''

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 16], opt: [4, 16], max: [8, 16]}}}
defaults: {inputs: {x: {}}, dims: {batch: x.0}, profiles: [rows], targets: [ada]}
models:
  fake: {source: {python: "nets:fake_quantized"}, reference: true}
  uneven: {source: {python: "nets:with_zero_points"}, reference: true}
"""


def quantized_file(**changes: Any) -> onnx.ModelProto:
    """A linear layer as onnxruntime's static quantizer writes it: int8 weights, a scale per channel, and an int32 bias.

    `changes` replace initializers, by name.
    """
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
    graph = onnx.helper.make_graph(
        nodes,
        "file",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 8])],
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
    command = CommandLine(folder, root / "cache")
    command("build")
    return command


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


def test_packages_return_the_results_of_the_models(project: CommandLine) -> None:
    for model, function in (("fake", "fake_quantized"), ("uneven", "with_zero_points")):
        package = trtbuild.load(project.project / "dist" / model, device="cpu")
        x = torch.randn(3, 16)
        torch.testing.assert_close(package.module()(x), _module(project, function)(x))


def _module(project: CommandLine, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The module that a function of the project's nets.py returns."""
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
    ("changes", "problem", "advises_symmetric"),
    [
        ({"x_scale": np.float32(0)}, "has the scale 0, but scales are positive", False),
        ({"zero": np.uint8(0)}, "quantizes to uint8, but TensorRT's types are signed", True),
        ({"zero": np.int8(3)}, "has the zero point 3, but TensorRT's zero points are 0", True),
    ],
)
def test_a_file_with_a_quantizer_that_tensorrt_lacks_is_refused_with_advice(
    command_line: CommandLine, changes: dict[str, Any], problem: str, advises_symmetric: bool
) -> None:
    lines = [line for line in MANIFEST.splitlines() if "python:" not in line]
    manifest = "\n".join([*lines, "  file: {source: {onnx: file.onnx}}"])
    (command_line.project / "trtbuild.yaml").write_text(manifest)
    onnx.save(quantized_file(**changes), command_line.project / "file.onnx")
    document = command_line("build", "file", expect=1)
    (error,) = document["errors"]
    assert error["text"] == f"node 'x_quantize' of file.onnx {problem}"
    assert ("ActivationSymmetric" in error["hint"]) is advises_symmetric


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("fp8", "to float8e4m3fn, which begins with SM 89"),
        ("scale_of_zero", "a quantizer of the model has the scale 0"),
        ("negative_scale", "a quantizer of module 'round' has the scale -0.01"),
        ("nvfp4_inputs", "quantizes a value that is not a weight to NVFP4"),
    ],
)
def test_a_format_that_cannot_be_built_is_refused(command_line: CommandLine, model: str, problem: str) -> None:
    manifest, _, _ = MANIFEST.replace("89", "86" if model == "fp8" else "120").partition("  fake:")
    (command_line.project / "trtbuild.yaml").write_text(f'{manifest}  m: {{source: {{python: "nets:{model}"}}}}\n')
    (command_line.project / "nets.py").write_text(NETS)
    (error,) = command_line("build", expect=1)["errors"]
    assert problem in error["text"]


def test_compile_accepts_the_result_of_pt2e(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example_nets: Any) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    module = example_nets.quantized_by_pt2e()
    sizes = {"min_shape": (1, 1, 16, 16), "opt_shape": (4, 1, 16, 16), "max_shape": (8, 1, 16, 16)}
    compiled = trtbuild.compile(module, [trtbuild.Input(**sizes)], target=89, device="cpu")
    assert module.training, "pt2e returns a module in training mode"
    assert sum(compiled.report["totals"]["engine"].values()) == 1
    assert compiled(example_nets.images(1)[0]).shape == (4, 10)


def test_the_error_against_the_float_model_is_reported_and_can_be_limited(project: CommandLine) -> None:
    (model,) = project("verify", "fake")["models"]
    (cut,) = model["cuts"]  # one comparison for each way to divide the model into partitions
    (output,) = cut["float_error"]["outputs"]
    assert output["output"] == 0 and 0 < output["mean"] < output["largest"] < 0.2
    assert cut["float_error"]["unknown"] == "" and "exceeds" not in model
    shown = project.run("verify", "fake", "--max-error", str(output["largest"] * 2))
    assert shown.returncode == 0 and f"output 0: {output['largest']:.1e} at most" in shown.stdout
    limit = output["largest"] / 2
    (model,) = project("verify", "fake", "--max-error", str(limit), expect=1)["models"]
    assert (model["ok"], model["status"], model["cuts"][0]["verdict"]) == (False, "right", "hit")
    assert model["exceeds"].endswith(f"--max-error allows {limit:.1e}")
