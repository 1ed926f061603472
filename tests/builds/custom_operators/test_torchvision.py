"""A detector with an engine for its convolutions, and with torchvision's nms and roi_align in PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.builds.custom_operators import torchvision_on_cpu
from tests.conftest import CommandLine

NETS = """
import torch
import torchvision.ops
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))

    def forward(self, x):
        features = self.body(x)
        corners = self.boxes(features).flatten(2).transpose(1, 2)[0].sigmoid() * 10
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1)
        kept = boxes[torchvision.ops.nms(boxes, self.scores(features).flatten(), 0.3)]
        regions = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
        return kept, self.head(torchvision.ops.roi_align(features, regions, (3, 3), 0.5, 2, True))


def build():
    torch.manual_seed(0)
    return Detector().eval()
"""

MANIFEST = """
version: 1
targets: {ada: {sm: 89}}
profiles: {images: {x: {min: [1, 3, 8, 8], opt: [1, 3, 32, 32], max: [1, 3, 48, 32]}}}
models:
  detector:
    source: {python: "nets:build"}
    inputs: {x: {}}
    dims: {height: {at: x.2, multiple_of: 8}, width: {at: x.3, multiple_of: 8}}
    profiles: [images]
    targets: [ada]
    reference: true
    partition: {min_block_size: 1}
"""

#: A program that compares the package with the model, and prints the number of boxes at each size.
COMPARE = """
import sys, torch, trtbuild
sys.path.insert(0, sys.argv[2])
with trtbuild.load(sys.argv[1], device="cpu", import_operators=True) as loaded:
    import nets
    for shape in ((1, 3, 8, 8), (1, 3, 40, 16), (1, 3, 48, 32)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[2]))
        with torch.no_grad():
            results, expected = loaded.module()(x), nets.build()(x)
        for tensor, expected_tensor in zip(results, expected, strict=True):
            torch.testing.assert_close(tensor, expected_tensor)
        boxes = results[0]
        print(len(boxes))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    root = tmp_path_factory.mktemp("torchvision")
    for name in ("libraries", "project"):
        (root / name).mkdir()
    (root / "project/nets.py").write_text(NETS)
    (root / "project/trtbuild.yaml").write_text(MANIFEST)
    command = CommandLine(root / "project", root / "cache", torchvision_on_cpu.environment(root / "libraries"))
    assert command("build")["ok"]
    return command


def index(built: CommandLine) -> Any:
    return json.loads((built.project / "dist/detector/index.json").read_bytes())


def test_the_convolutions_are_an_engine_and_torchvisions_operators_are_not(built: CommandLine) -> None:
    parts = index(built)["targets"]["ada"]["partitions"]["partitions"]
    assert {part["kind"] for part in parts} == {"tensorrt", "torch"}
    in_torch = {name for part in parts for name in part["reasons"]}
    assert {"torchvision.nms.default", "torchvision.roi_align.default"} <= in_torch
    assert "aten.conv2d.default" not in in_torch
    assert {operator["module"] for operator in index(built)["operators"]} == {"torchvision.extension"}


def test_the_package_returns_the_boxes_of_the_model(built: CommandLine) -> None:
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPARE, str(built.project / "dist/detector"), str(built.project)],
        env={**os.environ, **built.environment},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    assert len(set(completed.stdout.split())) > 1, completed.stdout  # the number of boxes depends on data


def test_verify_compares_the_detector(built: CommandLine) -> None:
    assert [model["status"] for model in built("verify")["models"]] == ["right"]
