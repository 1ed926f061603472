"""A model with a precision for each module: its engine, its results, the keys, and `inspect --precision`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from trtbuild import Input
from trtbuild.errors import SourceError

NETS = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return x / (x.abs().amax(-1, keepdim=True) + 0.5) * self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop, self.head = nn.Linear(8, 8), Norm(), nn.Dropout(), nn.Linear(8, 3)

    def forward(self, x):
        y = self.drop(self.norm(self.body(x)).softmax(-1))
        return self.head(y), x.abs()


def build():
    torch.manual_seed(0)
    return Net().eval()
"""

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [16, 8]}}}
models:
  net:
    source: {python: "nets:build"}
    inputs: {x: {}}
    profiles: [rows]
    targets: [ada]
    reference: true
"""

MIXED = "{default: float16, float32: ['*norm'], bfloat16: [head]}"


@pytest.fixture
def project(command_line: CommandLine) -> CommandLine:
    (command_line.project / "nets.py").write_text(NETS)
    return command_line


def set_precision(project: CommandLine, precision: str) -> CommandLine:
    (project.project / "trtbuild.yaml").write_text(f"{MANIFEST}    precision: {precision}\n")
    return project


def build_net() -> Any:
    namespace: dict[str, Any] = {}
    exec(NETS, namespace)
    return namespace["build"]()


def mixed_result(net: Any, x: torch.Tensor) -> torch.Tensor:
    """The first result of `net` in eager PyTorch, with the types of MIXED."""
    body = torch.nn.functional.linear(x.half(), net.body.weight.half(), net.body.bias.half())
    y = net.norm(body.float()).softmax(-1)
    return torch.nn.functional.linear(y.bfloat16(), net.head.weight.bfloat16(), net.head.bias.bfloat16()).float()


def test_a_model_computes_in_three_types(project: CommandLine) -> None:
    set_precision(project, MIXED)
    assert ran(project("build")) == {"trace": 1, "lower": 1, "partition": 1, "convert": 1, "engine": 1, "package": 1}
    index = project("inspect", "net")["index"]
    assert (index["precision"], index["other_precisions"]) == ("float16", ["float32", "bfloat16"])
    shown = project.run("inspect", "net").stdout
    assert "model net, float16 with modules in float32 and bfloat16, with its reference program" in shown

    x = torch.randn(3, 8)
    with trtbuild.load(project.project / "dist" / "net", device="cpu") as package, torch.no_grad():
        result, magnitudes = package.module()(x)
        assert torch.equal(result, mixed_result(build_net(), x))
    torch.testing.assert_close(magnitudes, x.abs(), rtol=1e-3, atol=0)

    document = json.loads(project.run("verify", "net", "--points", "1", "--json").stdout)
    (cut,) = document["models"][0]["cuts"]  # a cut: one way to divide the model into partitions
    assert document["ok"] and cut["whole"]["precision"] == "bfloat16"

    found = project("inspect", "net", "--precision")
    entries = {(entry["module"], entry["operator"].split(".")[1]): entry for entry in found["operators"]}
    assert entries["body", "linear"]["type"] == "float16" and entries["body", "linear"]["pattern"] is None
    assert entries["norm", "mul"]["type"] == "float32" and entries["norm", "mul"]["pattern"] == "*norm"
    assert entries["head", "linear"]["type"] == "bfloat16"
    assert (entries["", "softmax"]["type"], entries["", "softmax"]["rule"]) == ("float32", "operator")
    text = project.run("inspect", "net", "--precision").stdout
    assert "net: float16, float32 for *norm, bfloat16 for head" in text
    assert "operator: softmax: exponentials are summed over a row" in text


def test_a_change_of_patterns_reruns_only_the_steps_whose_results_change(project: CommandLine) -> None:
    project = set_precision(project, "float16")
    project("build")
    assert ran(set_precision(project, "{default: float16}")("build")) == {}
    # dropout computes nothing, so the lowered graph stays the same. The package changes, because its index names bfloat16
    assert ran(set_precision(project, "{default: float16, bfloat16: [drop]}")("build")) == {"lower": 1, "package": 1}
    assert ran(set_precision(project, "{default: float16, bfloat16: ['*rop']}")("build")) == {"lower": 1}
    assert set(ran(set_precision(project, MIXED)("build"))) == {"lower", "partition", "convert", "engine", "package"}
    assert ran(set_precision(project, "{float32: ['*norm'], bfloat16: head, default: float16}")("build")) == {}
    assert ran(set_precision(project, "float16")("build")) == {}


def test_a_pattern_that_does_not_fit_is_an_error_with_its_line(project: CommandLine) -> None:
    set_precision(project, "\n      default: float16\n      float32:\n        - norm\n        - '*.nrom'")
    (failure,) = project("build", expect=1)["errors"]
    assert (failure["file"], failure["line"]) == ("trtbuild.yaml", 16)
    assert "'*.nrom' (float32) matches no module" in failure["text"]
    assert "the module paths are: body, norm, drop, head" in failure["hint"]
    assert project("inspect", "net", "--precision", expect=1)["errors"][0]["line"] == 16


def test_inspect_explains_a_model_only_after_its_trace(project: CommandLine) -> None:
    set_precision(project, "float16")
    (failure,) = project("inspect", "net", "--precision", expect=2)["errors"]
    assert "net/trace has to run" in failure["text"] and failure["hint"] == "trtbuild build net --until trace"
    (failure,) = project("inspect", "--precision", expect=2)["errors"]
    assert "--precision is for one model" in failure["text"]
    project("build", "--until", "trace")
    assert project("inspect", "net", "--precision")["default"] == "float16"


def test_compile_accepts_a_precision_for_each_module(tmp_path: Path) -> None:
    net = build_net()
    options = {"target": 89, "device": "cpu", "cache_dir": str(tmp_path)}
    precision = {"default": torch.half, torch.float32: ["*norm"], "bfloat16": ["head"]}
    compiled = trtbuild.compile(
        net, [Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))], precision=precision, **options
    )
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(compiled(x)[0], mixed_result(net, x))
    with pytest.raises(SourceError, match=r"'haed' \(bfloat16\) matches no module"):
        trtbuild.compile(net, [Input((4, 8))], precision={"bfloat16": ["haed"]}, **options)
