"""Models that return sizes and other numbers beside tensors: packages, ``.pt2`` files, Triton, ``run`` and ``verify``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine

NETS = '''
import torch
from torch import nn

class Sizes(nn.Module):
    """Two equal layers, and numbers that TensorRT computes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x):
        y = x
        for layer in self.layers:
            y = layer(y)
        return {"y": y, "rows": x.shape[0], "deep": [y.numel(), x.shape[0], x.shape[0] > x.shape[1]]}

class Others(nn.Module):
    """Numbers that stay in PyTorch: a float, and numbers that depend on data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu(), x.shape[0] / 3, x.sum().item(), (x > 0).nonzero().shape[0]

def sizes():
    torch.manual_seed(0)
    return Sizes().eval()

def others():
    torch.manual_seed(0)
    return Others().eval()
'''

MANIFEST = """\
version: 1
targets:
  ada: {sm: 89}
profiles:
  small:
    x: {min: [1, 2, 8], opt: [4, 4, 8], max: [8, 6, 8]}
  large:
    x: {min: [8, 2, 8], opt: [16, 4, 8], max: [32, 8, 8]}
defaults:
  targets: [ada]
  profiles: [small, large]
  inputs: {x: {}}
  dims: {rows: x.0, columns: {at: x.1, multiple_of: 2}}
  reference: true
models:
  sizes:
    source: {python: "nets:sizes"}
    precision: float16
    outputs: {package: dist/sizes, pt2: dist/sizes.pt2, triton: dist/triton}
  layers: {source: {python: "nets:sizes"}, partition: {granularity: ["layers.*"]}}
  others:
    source: {python: "nets:others"}
    partition: {min_block_size: 1}
    outputs: {package: dist/others, pt2: dist/others.pt2}
"""

SHAPES = ((1, 2, 8), (5, 4, 8), (32, 8, 8))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("numbers")
    project = root / "project"
    project.mkdir()
    (project / "trtbuild.yaml").write_text(MANIFEST)
    (project / "nets.py").write_text(NETS)
    command = CommandLine(project, root / "cache")
    assert command("build")["ok"]
    return command


def index(command: CommandLine, model: str) -> Any:
    return json.loads((command.project / "dist" / model / "index.json").read_bytes())


def partitions(command: CommandLine, model: str) -> Any:
    return index(command, model)["targets"]["ada"]["partitions"]["partitions"]


def eager(model: str) -> torch.nn.Module:
    namespace: dict[str, Any] = {}
    exec(NETS, namespace)
    build: Callable[[], torch.nn.Module] = namespace[model]
    return build()


@torch.no_grad()
@pytest.mark.parametrize("model", ["sizes", "layers"])
def test_a_package_returns_the_numbers_of_the_model(built: CommandLine, model: str) -> None:
    original = eager("sizes")
    with trtbuild.load(built.project / "dist" / model, device="cpu") as loaded:
        for shape in SHAPES:
            x = torch.randn(shape)
            result, expected = loaded.module()(x), original(x)
            torch.testing.assert_close(result.pop("y"), expected.pop("y"), rtol=1e-2, atol=1e-2)
            assert result == expected and [type(value) for value in result["deep"]] == [int, int, bool]
        # deep[1] is the same number as "rows", so it has no separate output
        assert repr(loaded.outputs).endswith("rows: int64[], deep_0: int64[], deep_2: bool[])")


def test_tensorrt_computes_sizes(built: CommandLine) -> None:
    (engine,) = partitions(built, "sizes")
    assert engine["kind"] == "tensorrt"
    assert sorted(output["dtype"] for output in engine["outputs"]) == ["bool", "float32", "int64", "int64"]


def test_equal_layers_stay_equal_if_the_model_returns_a_size(built: CommandLine) -> None:
    layers = [part for part in partitions(built, "layers") if part["name"].startswith("layers.")]
    assert len(layers) == 2 and len({part["graph"] for part in layers}) == 1


@torch.no_grad()
def test_numbers_that_tensorrt_cannot_compute_stay_in_pytorch(built: CommandLine) -> None:
    parts = partitions(built, "others")
    assert {part["kind"] for part in parts} == {"tensorrt", "torch"}
    reasons = " ".join(reason for part in parts for reason in part["reasons"].values())
    assert "float64 is not a type that an engine computes in" in reasons and "depends on data" in reasons
    original = eager("others")
    with trtbuild.load(built.project / "dist/others", device="cpu") as loaded:
        for shape in SHAPES:
            x = torch.randn(shape)
            _, quotient, total, count = loaded.module()(x)
            _, expected_quotient, expected_total, expected_count = original(x)
            assert (quotient, count) == (expected_quotient, expected_count)
            assert total == pytest.approx(expected_total, rel=1e-5)
            assert [type(value) for value in (quotient, total, count)] == [float, float, int]


def test_the_index_has_the_schema_of_packages_with_numbers(built: CommandLine) -> None:
    found = index(built, "sizes")
    assert found["schema"] == "trtbuild.package/2"
    assert found["output_tree"]["items"][1] == {"kind": "number", "type": "int", "index": 1}


@torch.no_grad()
@pytest.mark.parametrize("model", ["sizes", "others"])
def test_a_pt2_file_returns_numbers(built: CommandLine, model: str) -> None:
    module = torch.export.load(built.project / "dist" / f"{model}.pt2").module()
    for shape in SHAPES:
        x = torch.randn(shape)
        result, expected = module(x), eager(model)(x)
        if model == "sizes":
            flag = result["deep"].pop()  # a .pt2 file returns a tensor for a bool
            assert isinstance(flag, torch.Tensor) and flag.item() is expected["deep"].pop()
            assert (result["rows"], result["deep"]) == (expected["rows"], expected["deep"])
        else:
            assert (result[1], result[3]) == (expected[1], expected[3])
            assert result[2] == pytest.approx(expected[2], rel=1e-5)


def test_triton_serves_numbers_as_tensors(built: CommandLine) -> None:
    text = (built.project / "dist/triton/sizes/config.pbtxt").read_text()
    assert 'name: "rows"\n  data_type: TYPE_INT64\n  dims: [1]' in text
    assert 'name: "deep_2"\n  data_type: TYPE_BOOL\n  dims: [1]' in text


def test_run_and_verify_accept_models_with_numbers(built: CommandLine) -> None:
    document = built("run", "others", "--device", "cpu")
    quotient = document["outputs"][1]
    assert (quotient["dtype"], quotient["shape"], quotient["min"]) == ("float64", [], 4 / 3)  # opt of `small`: 4 rows
    found = built("verify", "sizes", "layers", "others")
    assert found["ok"] and {model["status"] for model in found["models"]} == {"right"}
