"""Quantizers of every format become engines for each GPU that has the type, and `trtbuild verify` compares them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h

import trtbuild
from tests.conftest import CommandLine

NETS = """
import torch
from torch import nn

from trtbuild.stages.trace.quantization.quantizer import Quantizer, QuantizerLayout


class Quantized(nn.Module):
    def __init__(self, inputs, weight, *, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(256, 128, dtype=dtype)
        self.inputs = inputs
        self.weight = weight(self.linear.weight.detach().float())

    def forward(self, x):
        x = x if self.inputs is None else self.inputs(x)
        return nn.functional.linear(x, self.weight(self.linear.weight), self.linear.bias)


def int8_weights():
    return Quantized(None, lambda w: Quantizer(QuantizerLayout("int8", 0, -128), w.abs().amax(1) / 127)).eval()


def fp8():
    whole = QuantizerLayout("float8e4m3fn", None, 0)
    return Quantized(Quantizer(whole, torch.tensor(0.01)), lambda w: Quantizer(whole, w.abs().max() / 448)).eval()


def fp8_channels():
    return Quantized(None, lambda w: Quantizer(QuantizerLayout("float8e4m3fn", 0, 0), w.abs().amax(1) / 448)).eval()


def _int4(w):
    return Quantizer(QuantizerLayout("int4", None, -8, 128), w.reshape(-1, 128).abs().amax(1) / 7)


def int4():
    return Quantized(None, _int4).eval()


def awq():
    before = Quantizer(QuantizerLayout(None, None, 0), pre_scale=torch.linspace(0.5, 2, 256))
    return Quantized(before, _int4).eval()


def nvfp4():
    return Quantized(None, lambda w: Quantizer(QuantizerLayout("float4e2m1", None, 0, 16), w.abs().max() / 2688)).eval()


def nvfp4_inputs():
    layout = QuantizerLayout("float4e2m1", None, 0, 16)
    return Quantized(Quantizer(layout, torch.tensor(0.01)), _int4).eval()
"""

#: Model → its targets, and the types of the stored weights with their number of bytes.
MODELS: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "int8_weights": (("ampere", "ada", "blackwell"), {"INT8": 32768}),
    "fp8": (("ada", "blackwell"), {"FLOAT8E4M3FN": 32768}),
    "fp8_channels": (("ada", "blackwell"), {"FLOAT8E4M3FN": 32768}),
    "int4": (("ampere", "ada", "blackwell"), {"INT4": 16384}),
    "awq": (("ada",), {"INT4": 16384}),
    "nvfp4": (("blackwell",), {"FLOAT4E2M1": 16384, "FLOAT8E4M3FN": 2048}),
}

#: Model from an ONNX file → its targets.
FILES: dict[str, tuple[str, ...]] = {"fp8_file": ("ada", "blackwell"), "fp4_file": ("blackwell",)}

MANIFEST = """
version: 1
targets: {ampere: {sm: 86}, ada: {sm: 89}, blackwell: {sm: 120}}
profiles: {rows: {x: {min: [1, 256], opt: [4, 256], max: [8, 256]}}}
defaults: {inputs: {x: {}}, dims: {batch: x.0}, profiles: [rows]}
models:
"""


def _model(name: str, targets: tuple[str, ...], source: str = "") -> str:
    source = source or f'python: "nets:{name}"'
    return f"  {name}: {{source: {{{source}}}, targets: [{', '.join(targets)}], reference: true}}\n"


def _fp4_file() -> onnx.ModelProto:
    """A product with a weight in float4e2m1 and two levels of scales, in ONNX's own operators."""
    random = np.random.default_rng(0)
    initializers = [
        h.make_tensor("w", T.FLOAT4E2M1, [128, 256], random.bytes(128 * 128), raw=True),
        h.make_tensor("s", T.FLOAT8E4M3FN, [128, 16], bytes([0x38] * 128 * 16), raw=True),
        h.make_tensor("g", T.FLOAT, [], [0.01]),
    ]
    nodes = [
        h.make_node("DequantizeLinear", ["s", "g"], ["scales"]),
        h.make_node("DequantizeLinear", ["w", "scales"], ["weight"], axis=1, block_size=16),
        h.make_node("Gemm", ["x", "weight"], ["y"], transB=1),
    ]
    return _onnx_model(nodes, initializers, 23, 11)


def _fp8_file() -> onnx.ModelProto:
    """A product of quantized numbers as Model Optimizer exports it, with its own operators."""
    weight = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    initializers = [h.make_tensor("s", T.FLOAT, [], [0.01]), onnx.numpy_helper.from_array(weight, "w")]
    nodes = []
    for name in ("x", "w"):
        nodes.append(h.make_node("TRT_FP8QuantizeLinear", [name, "s"], [f"{name}_q"], domain="trt"))
        nodes.append(h.make_node("TRT_FP8DequantizeLinear", [f"{name}_q", "s"], [f"{name}_d"], domain="trt"))
    nodes.append(h.make_node("Gemm", ["x_d", "w_d"], ["y"], transB=1))
    return _onnx_model(nodes, initializers, 20, 10)


def _onnx_model(nodes: list[onnx.NodeProto], initializers: list[T], opset: int, ir_version: int) -> onnx.ModelProto:
    value = h.make_tensor_value_info
    sizes = [value("x", T.FLOAT, ["b", 256])], [value("y", T.FLOAT, ["b", 128])]
    imports = [h.make_opsetid("", opset), h.make_opsetid("trt", 1)]
    return h.make_model(h.make_graph(nodes, "g", *sizes, initializers), opset_imports=imports, ir_version=ir_version)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("formats")
    folder = root / "project"
    folder.mkdir()
    models = "".join(_model(name, targets) for name, (targets, _) in MODELS.items())
    models += "".join(_model(name, targets, f"onnx: {name}.onnx") for name, targets in FILES.items())
    (folder / "trtbuild.yaml").write_text(MANIFEST + models)
    onnx.save(_fp4_file(), folder / "fp4_file.onnx")
    onnx.save(_fp8_file(), folder / "fp8_file.onnx")
    (folder / "nets.py").write_text(NETS)
    command = CommandLine(folder, root / "cache")
    command("build")
    return command


@pytest.mark.parametrize("model", MODELS)
def test_a_format_is_one_engine_that_stores_narrow_weights(project: CommandLine, model: str) -> None:
    targets, types = MODELS[model]
    document = project("inspect", model, "--onnx", str(project.project / "written" / model))
    assert Counter(engine["partition"] for engine in document["engines"]) == {"model": len(targets)}
    assert set(document["index"]["quantized"]) == {name.lower() for name in types}
    for target in targets:
        parts = document["index"]["targets"][target]["partitions"]["partitions"]
        assert [part["kind"] for part in parts] == ["tensorrt"]
        graph = onnx.load(project.project / "written" / model / target / "model.onnx").graph
        stored = {
            onnx.TensorProto.DataType.Name(tensor.data_type): len(tensor.raw_data)
            for tensor in graph.initializer
            if len(tensor.dims) == 2 and tensor.data_type != onnx.TensorProto.FLOAT
        }
        assert stored == types


@pytest.mark.parametrize("model", FILES)
def test_a_quantized_file_is_one_engine(project: CommandLine, model: str) -> None:
    document = project("inspect", model, "--onnx", str(project.project / "written" / model))
    assert len(document["engines"]) == len(FILES[model])
    graph = onnx.load(project.project / "written" / model / "blackwell" / "model.onnx").graph
    assert {node.domain for node in graph.node} == {""}


def test_all_formats_are_right(project: CommandLine) -> None:
    document = project("verify")
    statuses = {model["model"]: model["status"] for model in document["models"]}
    # without a GPU, nothing is compared for an ONNX file
    assert statuses == {**dict.fromkeys(MODELS, "right"), **dict.fromkeys(FILES, "unchecked")}


@pytest.mark.parametrize("model", MODELS)
def test_a_package_runs_without_the_stages(project: CommandLine, model: str) -> None:
    package = trtbuild.load(project.project / "dist" / model, device="cpu")
    namespace: dict[str, object] = {}
    exec(NETS, namespace)
    x = torch.randn(3, 256)
    torch.testing.assert_close(package.module()(x), namespace[model]()(x))  # type: ignore[operator]


def test_an_engine_for_another_gpu_is_refused_with_the_first_gpu_that_has_the_type(project: CommandLine) -> None:
    (project.project / "old.yaml").write_text(MANIFEST + _model("fp8", ("ampere",)))
    document = project("build", "-f", "old.yaml", expect=1)
    assert "float8e4m3fn" in document["errors"][0]["text"] and "SM 89" in document["errors"][0]["text"]


def test_inputs_in_nvfp4_are_refused(project: CommandLine) -> None:
    (project.project / "inputs.yaml").write_text(MANIFEST + _model("nvfp4_inputs", ("blackwell",)))
    document = project("build", "-f", "inputs.yaml", expect=1)
    assert "quantizes a value to NVFP4 that is not a weight" in document["errors"][0]["text"]
