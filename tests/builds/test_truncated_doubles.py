"""A float64 model built with ``truncate_double``: engines, package, `inspect`, `verify` and `trtbuild.compile`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from trtbuild import Input
from trtbuild.errors import ConversionRefused

NETS = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).double().eval()
"""

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [16, 8]}}}
models:
  net:
    source: {python: "nets:build"}
    inputs: {x: {dtype: float64}}
    profiles: [rows]
    targets: [ada]
    reference: true
"""


@pytest.fixture
def project(command_line: CommandLine) -> CommandLine:
    (command_line.project / "nets.py").write_text(NETS)
    (command_line.project / "trtbuild.yaml").write_text(MANIFEST)
    return command_line


def build_net() -> Any:
    namespace: dict[str, Any] = {}
    exec(NETS, namespace)
    return namespace["build"]()


def write_truncating_manifest(project: CommandLine) -> None:
    (project.project / "trtbuild.yaml").write_text(MANIFEST + "    partition: {truncate_double: true}\n")


def test_float64_operators_are_in_an_engine_only_with_the_setting(project: CommandLine) -> None:
    before = project("build")
    assert "engine" not in ran(before)
    assert project("inspect", "net")["engines"] == []
    write_truncating_manifest(project)
    assert ran(project("build")) == {"lower": 1, "partition": 1, "convert": 1, "engine": 1, "package": 1}
    found = project("inspect", "net")
    assert found["index"]["truncate_double"] is True
    assert len(found["engines"]) == 1
    parts = found["index"]["targets"]["ada"]["partitions"]["partitions"]
    assert [part["kind"] for part in parts] == ["torch", "tensorrt", "torch"]
    shown = project.run("inspect", "net").stdout
    assert "float32, float64 is computed in float32, with its reference program" in shown
    assert "casts float64 at the border of an engine" in shown
    with trtbuild.load(project.project / "dist" / "net", device="cpu") as package:
        x = torch.randn(3, 8, dtype=torch.float64)
        result, eager = package.module()(x), build_net()(x)
    assert result.dtype is torch.float64
    torch.testing.assert_close(result, eager, rtol=1e-5, atol=1e-6)
    assert not torch.equal(result, eager)  # the package computes in float32


def test_verify_uses_the_tolerance_of_float32(project: CommandLine) -> None:
    write_truncating_manifest(project)
    project("build")
    document = json.loads(project.run("verify", "net", "--points", "1", "--json").stdout)
    (model,) = document["models"]
    (cut,) = model["cuts"]  # a cut is one way in which the model is partitioned
    assert model["ok"]
    assert cut["tolerance"] == 1e-5


def test_without_the_setting_the_index_does_not_contain_it(project: CommandLine) -> None:
    project("build")
    assert "truncate_double" not in json.loads((project.project / "dist" / "net" / "index.json").read_bytes())


@pytest.mark.parametrize("option", ["truncate_double", "truncate_long_and_double"])
def test_compile_accepts_both_names_of_the_option(project: CommandLine, option: str) -> None:
    module = build_net()
    rows = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8), dtype=torch.double)
    options = {"target": 89, "device": "cpu", "cache_dir": project.cache, "require_full_compilation": True}
    with pytest.raises(ConversionRefused):
        trtbuild.compile(module, [rows], **options)
    compiled = trtbuild.compile(module, [rows], **options, **{option: True})
    assert compiled(torch.ones(2, 8, dtype=torch.float64)).dtype is torch.float64
    assert compiled.package.index.truncates_double
