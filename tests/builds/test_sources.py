"""Models that come as ONNX, TorchScript and TensorRT networks: their packages, and the steps that run after a change.

The tests run in order. Each starts with the project of the test before it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper as h
from torch import nn

import trtbuild
from tests.conftest import CommandLine, ran, step

MANIFEST = """\
version: 1
targets:
  ada: {sm: 89}
profiles:
  rows:
    x: {min: [1, 64], opt: [4, 64], max: [8, 64]}
defaults: {targets: [ada], profiles: [rows], inputs: {x: {}}, dims: {rows: x.0}, reference: true}
models:
  from_onnx: {source: {onnx: net.onnx}}
  script: {source: {torchscript: net.ts}}
  network: {source: {network: "nets.dense:define", kwargs: {slope: 0.1}}, reference: false}
"""

NETWORK = """\
import numpy as np

def define(network, trt, slope):
    x = network.add_input("x", trt.float32, (-1, 64))
    weight = np.load("weight.npy")
    w = network.add_constant(weight.shape, weight)
    w.name = "weight"
    y = network.add_matrix_multiply(x, trt.MatrixOperation.NONE, w.get_output(0), trt.MatrixOperation.NONE)
    act = network.add_activation(y.get_output(0), trt.ActivationType.LEAKY_RELU)
    act.alpha = slope
    act.get_output(0).name = "y"
    network.mark_output(act.get_output(0))
"""


def weight(factor: float = 1) -> np.ndarray:
    """The weight of the ONNX model and of the network: float32, [64, 8]."""
    values: np.ndarray = (np.arange(64 * 8, dtype=np.float32).reshape(64, 8) - 256) / 100 * np.float32(factor)
    return values


def write_onnx(
    project: Path, *, factor: float = 1, name: str = "product", operator: str = "Relu", external_data: bool = False
) -> None:
    nodes = [h.make_node(operator, ["x"], ["r"], name="act"), h.make_node("MatMul", ["r", "w"], ["y"], name=name)]
    graph = h.make_graph(
        nodes,
        "net",
        [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 64])],
        [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 8])],
        initializer=[onnx.numpy_helper.from_array(weight(factor), "w")],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    (project / "net.data").unlink(missing_ok=True)
    onnx.save(model, project / "net.onnx", save_as_external_data=external_data, location="net.data", size_threshold=0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("sources")
    project = root / "project"
    (project / "nets").mkdir(parents=True)
    (project / "trtbuild.yaml").write_text(MANIFEST)
    (project / "nets/dense.py").write_text(NETWORK)
    np.save(project / "weight.npy", weight())
    write_onnx(project)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    torch.jit.save(torch.jit.script(module), str(project / "net.ts"))
    command = CommandLine(project, root / "cache")
    document = command("build")
    assert document["ok"]
    assert ran(document) == dict.fromkeys(("trace", "lower", "partition", "convert", "engine", "package"), 3)
    return command


def index(command: CommandLine, model: str) -> Any:
    return json.loads((command.project / "dist" / model / "index.json").read_bytes())


def stages_of_build(command: CommandLine, model: str) -> dict[str, int]:
    return ran(command("build", model))


def test_the_second_build_runs_nothing(built: CommandLine) -> None:
    assert ran(built("build")) == {}


def test_packages_describe_the_models(built: CommandLine) -> None:
    for model in ("from_onnx", "script", "network"):
        content = index(built, model)
        assert [(entry["name"], entry["dtype"], entry["shape"]) for entry in content["inputs"]] == [
            ("x", "float32", [["sym", 0], 64])
        ]
        assert content["reference"] is (model != "network")
    programs = [path for path in index(built, "from_onnx")["files"] if path.startswith(("onnx/", "torch/"))]
    assert programs and all(path.endswith(".onnx") for path in programs), "the reference program is an ONNX model"
    assert index(built, "from_onnx")["outputs"] == [{"name": "y", "dtype": "float32", "shape": [["sym", 0], 8]}]
    assert index(built, "network")["outputs"][0]["name"] == "y"
    names = json.loads((built.project / "dist/from_onnx/names.json").read_bytes())
    assert names["ada"]["model"] == {"n0": ["act", "Relu"], "n1": ["product", "MatMul"]}
    names = json.loads((built.project / "dist/network/names.json").read_bytes())
    assert names["ada"]["model"]["n0"] == ["weight", "constant"]


def test_references_give_the_same_results_as_the_source_files(built: CommandLine) -> None:
    x = torch.randn(5, 64)
    with trtbuild.load(built.project / "dist/from_onnx", device="cpu") as loaded:
        (expected,) = onnxruntime.InferenceSession(built.project / "net.onnx").run(None, {"x": x.numpy()})
        assert torch.allclose(loaded.module()(x), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
    with trtbuild.load(built.project / "dist/script", device="cpu") as loaded, torch.no_grad():
        assert torch.allclose(loaded.module()(x), torch.jit.load(built.project / "net.ts")(x), rtol=1e-5, atol=1e-5)


def test_a_network_has_no_reference(built: CommandLine) -> None:
    with pytest.raises(trtbuild.errors.PackageError, match="has no reference program"):
        trtbuild.load(built.project / "dist/network", device="cpu")


def test_a_renamed_node_of_an_onnx_file_builds_no_engine(built: CommandLine) -> None:
    write_onnx(built.project, name="renamed")
    assert stages_of_build(built, "from_onnx") == {"trace": 1, "lower": 1, "package": 1}
    names = json.loads((built.project / "dist/from_onnx/names.json").read_bytes())
    assert names["ada"]["model"]["n1"] == ["renamed", "MatMul"]


def test_another_weight_runs_only_trace_engine_and_package(built: CommandLine) -> None:
    write_onnx(built.project, factor=2, name="renamed")
    document = built("build", "from_onnx")
    assert ran(document) == {"trace": 1, "engine": 1, "package": 1}
    (change, *_) = step(document, "from_onnx/engine/model@ada")["reason"]["changed"]
    assert change["name"] == "w"


def test_moving_weights_to_external_data_builds_no_engine_and_changing_them_there_does(built: CommandLine) -> None:
    write_onnx(built.project, factor=2, name="renamed", external_data=True)
    assert stages_of_build(built, "from_onnx") == {"trace": 1}
    with open(built.project / "net.data", "r+b") as file:
        file.write(b"\0\0\0\0")  # the first weight becomes 0
    assert stages_of_build(built, "from_onnx") == {"trace": 1, "engine": 1, "package": 1}


def test_another_operator_builds_everything(built: CommandLine) -> None:
    write_onnx(built.project, operator="Tanh")
    assert stages_of_build(built, "from_onnx") == dict.fromkeys(
        ("trace", "lower", "partition", "convert", "engine", "package"), 1
    )


def test_a_file_that_a_network_reads_is_a_dependency(built: CommandLine) -> None:
    np.save(built.project / "weight.npy", weight(3))
    assert stages_of_build(built, "network") == {"trace": 1, "engine": 1, "package": 1}


def test_a_comment_in_a_networks_module_runs_only_the_trace(built: CommandLine) -> None:
    path = built.project / "nets/dense.py"
    path.write_text("# a comment\n" + path.read_text())
    assert stages_of_build(built, "network") == {"trace": 1}


def test_a_label_of_a_network_builds_no_engine(built: CommandLine) -> None:
    path = built.project / "nets/dense.py"
    path.write_text(path.read_text().replace('"weight"\n', '"kernel"\n'))
    assert stages_of_build(built, "network") == {"trace": 1, "lower": 1, "package": 1}


def test_an_argument_of_a_network_is_in_its_key(built: CommandLine) -> None:
    path = built.project / "trtbuild.yaml"
    path.write_text(path.read_text().replace("slope: 0.1", "slope: 0.2"))
    document = built("build", "network")
    assert ran(document)["engine"] == 1
    assert step(document, "network/trace")["reason"]["changed"][0]["part"] == "source.kwargs.slope"


def test_another_weight_of_a_script_runs_only_trace_engine_and_package(built: CommandLine) -> None:
    script = torch.jit.load(built.project / "net.ts")
    with torch.no_grad():
        next(script.parameters()).mul_(2)
    torch.jit.save(script, str(built.project / "net.ts"))
    assert stages_of_build(built, "script") == {"trace": 1, "engine": 1, "package": 1}


def test_verify_gives_the_reason_why_a_model_is_not_compared(built: CommandLine) -> None:
    document = built("verify", "from_onnx", "network")
    assert [(model["status"], model["ok"]) for model in document["models"]] == [("unchecked", True)] * 2
    from_onnx, network = (model["not_run"][0]["reason"] for model in document["models"])
    # an ONNX file has no conversion to compare, so only its engines could be compared
    assert from_onnx == "no GPU was found"
    assert "there is no PyTorch model to compare with" in network
