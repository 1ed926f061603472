"""A quantized model whose engine multiplies floats: the build warns, and `inspect --layers` shows the types.

TensorRT-RTX 1.7.1 has no int8 convolution for Turing, so the running engine converts the input and the weight to float16.
"""

from __future__ import annotations

from typing import Any

import pytest

import trtbuild
from tests.conftest import CommandLine

NETS = """
import torch
from torch import nn


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 16, 3)
        self.register_buffer("scales", self.conv.weight.detach().abs().amax((1, 2, 3)) / 127)
        self.register_buffer("zero_points", torch.zeros(16, dtype=torch.int32))

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127)
        weight = self.conv.weight
        weight = torch.fake_quantize_per_channel_affine(weight, self.scales, self.zero_points, 0, -128, 127)
        return nn.functional.conv2d(x, weight, self.conv.bias)


def build():
    return Quantized().eval()
"""

MANIFEST = """
version: 1
targets: {turing: {sm: 75}, ada: {sm: 89}}
profiles: {photo: {x: {min: [1, 8, 8, 8], opt: [2, 8, 8, 8], max: [4, 8, 8, 8]}}}
models:
  net:
    {source: {python: "nets:build"}, inputs: {x: {}}, dims: {batch: x.0}, profiles: [photo], targets: [turing, ada],
     precision: float16, reference: true}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, Any]:
    """A project, and the JSON output of its first build."""
    root = tmp_path_factory.mktemp("float_engines")
    folder = root / "project"
    folder.mkdir()
    (folder / "trtbuild.yaml").write_text(MANIFEST)
    (folder / "nets.py").write_text(NETS)
    command_line = CommandLine(folder, root / "cache")
    return command_line, command_line("build")


@pytest.fixture
def project(built: tuple[CommandLine, Any]) -> CommandLine:
    return built[0]


def test_each_build_warns_about_an_engine_that_multiplies_floats(built: tuple[CommandLine, Any]) -> None:
    project, first = built
    (project.project / "dist" / "net" / "index.json").unlink()
    from_cache, nothing_to_do = project("build"), project("build")
    (warning,) = first["warnings"]
    assert warning.startswith("net@turing: tensorrt-rtx multiplies floats, although the model quantizes both factors")
    assert from_cache["warnings"] == nothing_to_do["warnings"] == [warning]


def test_the_types_of_layers_and_weights_are_listed(project: CommandLine) -> None:
    engines = {engine["target"]: engine for engine in project("inspect", "net", "--layers")["engines"]}
    weight_bytes = 16 * 8 * 3 * 3  # of the convolution, in int8
    assert {engine["weights"]["int8"] for engine in engines.values()} == {weight_bytes}
    assert engines.keys() == {"turing", "ada"}
    reads = {
        target: {name for layer in engine["layers"] if layer["type"] == "convolution" for name in layer["reads"]}
        for target, engine in engines.items()
    }
    assert "int8" in reads["ada"] and "int8" not in reads["turing"]
    assert "weights: " in project.run("inspect", "net", "--layers").stdout


def test_the_package_names_its_quantized_types(project: CommandLine) -> None:
    assert trtbuild.load(project.project / "dist" / "net", device="cpu").quantized == ("int8",)
    assert project("inspect", "net")["index"]["quantized"] == ["int8"]
    assert "model net, float16, quantized to int8" in project.run("inspect", "net").stdout


def test_weights_are_listed_only_with_the_flag_for_layers(project: CommandLine) -> None:
    assert [engine["weights"] for engine in project("inspect", "net")["engines"]] == [None, None]
