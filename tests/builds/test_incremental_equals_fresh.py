"""After any series of edits, every byte of ``dist/`` is equal to that of a build from scratch.

The build from scratch is that of a copy of the project, with an empty cache. The bytes can be compared, because
TensorRT-RTX compiles reproducibly. The tests run in order, each with the project of the test before it. A build from
scratch takes seconds, so each test makes several edits before its comparison.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import CommandLine, ran

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}, ampere: {sm: 86}}
profiles:
  rows: {x: {min: [1, 8], opt: [2, 8], max: [4, 8]}, y: {min: [1, 8], opt: [2, 8], max: [4, 8]}}
  more: {x: {min: [1, 8], opt: [2, 8], max: [6, 8]}, y: {min: [1, 8], opt: [2, 8], max: [6, 8]}}
models:
  net:
    source: {python: "models.net:build", kwargs: {scale: 1}}
    weights: net.safetensors
    inputs: {x: {}, y: {}}
    dims: {batch: {at: [x.0, y.0]}}
    profiles: [rows, more]
    targets: [ada]
    builder: {optimization_level: 0}
    outputs: {package: dist/net, plans: dist/plans}
"""

#: The model depends on the type of `scale`: 1, 1.0 and True are equal in Python, but different arguments of a model.
NET = """\
import json
from pathlib import Path
import torch

FACTORS = (Path(__file__).parent / "current").resolve() / "factors.json"

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.a(x))

class Net(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.first, self.second = Block(), Block()
        self.scale = 7.0 if isinstance(scale, bool) else 3.0 if isinstance(scale, float) else float(scale)
        self.factor = json.loads(FACTORS.read_text())

    def forward(self, x, y):
        return self.second(self.first(x) * self.scale - torch.sin(y)) * self.factor

def build(scale):
    return Net(scale).eval()
"""


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        f"{block}.a.{name}": random.standard_normal(shape, dtype=np.float32)
        for block in ("first", "second")
        for name, shape in (("weight", (8, 8)), ("bias", (8,)))
    }


@pytest.fixture(scope="module")
def trtbuild(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("fresh")
    project = base / "project"
    for version, factor in (("v1", "1.0"), ("v2", "2.0")):
        (project / "models" / version).mkdir(parents=True)
        (project / "models" / version / "factors.json").write_text(factor)
    (project / "models" / "current").symlink_to("v1")
    (project / "models" / "net.py").write_text(NET)
    (project / "trtbuild.yaml").write_text(MANIFEST)
    save_file(weights(), project / "net.safetensors")
    return CommandLine(project, base / "cache")


def edit_manifest(trtbuild: CommandLine, old: str, new: str) -> None:
    path = trtbuild.project / "trtbuild.yaml"
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def output_files(project: Path) -> Mapping[str, bytes]:
    """Relative path → content, for each file in ``dist/``."""
    root = project / "dist"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def assert_equals_fresh_build(trtbuild: CommandLine, base: Path) -> None:
    copy = base / "copy"
    shutil.copytree(trtbuild.project, copy, symlinks=True, ignore=shutil.ignore_patterns(".trtbuild", "dist"))
    CommandLine(copy, base / "cache")("build")
    outputs, fresh_outputs = output_files(trtbuild.project), output_files(copy)
    assert {name for name in outputs | fresh_outputs if outputs.get(name) != fresh_outputs.get(name)} == set()


def test_after_edits_without_a_trace_the_outputs_equal_a_fresh_build(trtbuild: CommandLine, tmp_path: Path) -> None:
    trtbuild("build")
    save_file(weights(seed=1), trtbuild.project / "net.safetensors")
    assert ran(trtbuild("build")) == {"engine": 1, "package": 1}
    edit_manifest(trtbuild, "targets: [ada]", "targets: [ada, ampere]")
    assert ran(trtbuild("build")) == {"engine": 1, "package": 1}
    edit_manifest(trtbuild, "dims: {batch:", "dims: {rows:")
    assert ran(trtbuild("build")) == {"package": 1}
    edit_manifest(trtbuild, "    builder:", "    partition: {granularity: [first, second]}\n    builder:")
    # four partitions for each of two targets; the two blocks share one conversion
    assert ran(trtbuild("build")) == {"partition": 1, "convert": 3, "engine": 8, "package": 1}
    edit_manifest(trtbuild, "targets: [ada, ampere]", "targets: [ampere]")
    assert ran(trtbuild("build")) == {"package": 1}
    assert_equals_fresh_build(trtbuild, tmp_path)


def test_after_edits_with_a_trace_the_outputs_equal_a_fresh_build(trtbuild: CommandLine, tmp_path: Path) -> None:
    edit_manifest(trtbuild, "    partition: {granularity: [first, second]}\n", "")
    edit_manifest(trtbuild, "scale: 1}", "scale: true}")
    assert ran(trtbuild("build"))["trace"] == 1
    edit_manifest(trtbuild, "inputs: {x: {}, y: {}}", "inputs: {y: {}, x: {}}")
    assert ran(trtbuild("build")) == {"trace": 1, "package": 1}
    link = trtbuild.project / "models" / "current"
    link.unlink()
    link.symlink_to("v2")
    assert ran(trtbuild("build")) == dict.fromkeys(("trace", "lower", "partition", "convert", "engine", "package"), 1)
    assert_equals_fresh_build(trtbuild, tmp_path)
