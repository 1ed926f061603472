"""Axes with equal ranges in the manifest become one dim of the package if the model requires equal sizes."""

from __future__ import annotations

import json

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine
from trtbuild.errors import CallRefused

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows:
    x: {min: [1, 8], opt: [4, 8], max: [8, 8]}
    y: {min: [1, 8], opt: [4, 8], max: [8, 8]}
    z: {min: [1, 8], opt: [4, 8], max: [8, 8]}
models:
  net:
    source: {python: "net:Net"}
    inputs: {x: {}, y: {}, z: {}}
    profiles: [rows]
    targets: [ada]
    reference: true
"""

NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.eval()

    def forward(self, x, y, z):
        return torch.tanh(self.linear(x) + z), y.relu()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("tied")
    (base / "project").mkdir()
    (base / "project" / "trtbuild.yaml").write_text(MANIFEST)
    (base / "project" / "net.py").write_text(NET)
    command_line = CommandLine(base / "project", base / "cache")
    command_line("build")
    return command_line


def test_plan_names_the_equal_axes(command: CommandLine) -> None:
    assert command("plan")["equal_axes"] == [{"model": "net", "axes": ["x.0", "z.0"]}]


def test_the_package_has_one_dim_for_the_equal_axes(command: CommandLine) -> None:
    index = json.loads((command.project / "dist" / "net" / "index.json").read_text())
    assert [dim["name"] for dim in index["dims"]] == ["x_0", "y_0"]
    assert [entry["shape"][0] for entry in index["inputs"]] == [["sym", 0], ["sym", 1], ["sym", 0]]


def test_verify_compares_at_equal_sizes(command: CommandLine) -> None:
    assert command("verify")["ok"]


def test_rejects_a_call_with_unequal_sizes_and_names_the_axes(command: CommandLine) -> None:
    module = trtbuild.load(command.project / "dist" / "net", device="cpu").module()
    first, second = module(torch.ones(3, 8), torch.ones(5, 8), torch.ones(3, 8))
    assert (first.shape, second.shape) == ((3, 8), (5, 8))
    with pytest.raises(CallRefused, match=r"dim 'x_0' is 3 in x\.0 and 4 in z\.0"):
        module(torch.ones(3, 8), torch.ones(3, 8), torch.ones(4, 8))
