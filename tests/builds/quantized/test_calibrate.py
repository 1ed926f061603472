"""Models with ``quantize:``: the calibrate step runs when its data, format, method, weights or `exclude` change."""

from __future__ import annotations

import re

import pytest

from tests.conftest import CommandLine, ran

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 128))
        self.head = nn.Linear(128, 8)

    def forward(self, x):
        return self.head(self.body(x))


def build(seed=0):
    return Net(seed).eval()
"""

DATA = """
import torch


def batches(scale=1.0):
    for _ in range(4):
        yield {"x": scale * torch.randn(2, 256)}
"""

MANIFEST = """
version: 1
targets: {ada: {sm: 89}, blackwell: {sm: 120}}
profiles: {rows: {x: {min: [1, 256], opt: [4, 256], max: [8, 256]}}}
defaults: {inputs: {x: {}}, dims: {batch: x.0}, profiles: [rows],
  targets: [ada, blackwell]}
models:
"""


def manifest_of(quantize: str | None, targets: str = "[ada, blackwell]") -> str:
    """The manifest of one model ``net``. `quantize`: the value of the field `quantize:`; None leaves the field out."""
    model = f'  net:\n    source: {{python: "nets:build"}}\n    targets: {targets}\n'
    return MANIFEST + model + (f"    quantize: {quantize}\n" if quantize else "")


INT8 = '{format: int8, calibration: {python: "data:batches"}}'


def write_project(project: CommandLine, manifest: str, nets: str = NETS, data: str = DATA) -> None:
    (project.project / "nets.py").write_text(nets)
    (project.project / "data.py").write_text(data)
    (project.project / "trtbuild.yaml").write_text(manifest)


def test_each_change_runs_the_steps_that_depend_on_it(command_line: CommandLine) -> None:
    all_stages = {"calibrate", "trace", "lower", "partition", "convert", "engine", "package"}
    write_project(command_line, manifest_of(INT8))
    assert set(ran(command_line("build", "--depfile", "deps"))) == all_stages
    assert "data.py" in (command_line.project / "deps").read_text()
    assert ran(command_line("build")) == {}

    write_project(command_line, manifest_of(INT8), data=DATA + "# a comment\n")
    assert ran(command_line("build")) == {"calibrate": 1}

    write_project(command_line, manifest_of(INT8, "[ada]"))
    assert ran(command_line("build")) == {"package": 1}

    other_data = DATA.replace("scale=1.0", "scale=2.0")
    write_project(command_line, manifest_of(INT8), data=other_data)
    assert {"calibrate", "trace", "lower", "engine"} <= set(ran(command_line("build")))

    # a plan shows the verdict of the calibrate step, so these changes need no build
    calibrated = manifest_of(INT8)
    excluded = manifest_of(INT8.replace("format: int8,", "format: int8, exclude: head,"))
    entropy = manifest_of(INT8.replace("int8,", "int8, method: entropy,"))
    for manifest, nets in ((calibrated, NETS.replace("seed=0", "seed=1")), (excluded, NETS), (entropy, NETS)):
        write_project(command_line, manifest, nets=nets, data=other_data)
        assert _calibrate_verdict(command_line) == "run"
    write_project(command_line, calibrated, data=other_data)
    assert _calibrate_verdict(command_line) == "hit"

    write_project(command_line, manifest_of("{format: int8_weight_only}"))
    assert {"calibrate", "trace", "engine"} <= set(ran(command_line("build")))

    write_project(command_line, manifest_of(None))
    assert "calibrate" not in ran(command_line("build"))


def _calibrate_verdict(command_line: CommandLine) -> str:
    (verdict,) = [step["verdict"] for step in command_line("plan")["steps"] if step["stage"] == "calibrate"]
    return str(verdict)


#: Name → the value of `quantize:`, the text of data.py, and a pattern for the error.
REJECTED = {
    "few": ('{format: int8, calibration: {python: "data:batches", samples: 9}}', DATA, "has 4 samples"),
    "zero": (INT8, DATA.replace("scale *", "0 *"), "are 0 in all samples"),
    "nan": (INT8, DATA.replace("scale *", "float('nan') *"), "not finite"),
    "shape": (INT8, DATA.replace("2, 256", "256"), "has the shape \\[256\\]"),
    "names": (INT8, DATA.replace('"x"', '"y"'), "has the inputs y; the model has x"),
    "type": (INT8, DATA.replace("torch.randn(2, 256)", "torch.randn(2, 256).half()"), "is float16"),
    "changing": (
        INT8,
        DATA
        + "import os\nbatches = lambda: [{'x': torch.full((1, 256), 1.0 + int.from_bytes(os.urandom(3), 'big'))}]\n",
        "yields other values",
    ),
    "raises": (INT8, DATA.replace("yield", "raise ValueError('gone')\n        yield"), "gone"),
    "excluded": (INT8.replace("int8,", "int8, exclude: ['body', 'head'],"), DATA, "no linear layer or convolution"),
    "pattern": (INT8.replace("int8,", "int8, exclude: heads,"), DATA, "no module of the model matches 'heads'"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejects_data_and_patterns_that_do_not_fit_the_model(command_line: CommandLine, name: str) -> None:
    quantize, data, pattern = REJECTED[name]
    write_project(command_line, manifest_of(quantize, "[ada]"), data=data)
    (error,) = command_line("build", expect=1)["errors"]
    assert error["type"] == "SourceError" and re.search(pattern, error["text"]), error
    assert error["file"] in ("trtbuild.yaml", "data.py") and error["line"]


@pytest.mark.parametrize(
    ("quantize", "problem"),
    [
        ("{format: int8}", "needs calibration data"),
        ('{format: fp8, method: entropy, calibration: {python: "data:batches"}}', "has no method 'entropy'"),
        ('{format: nvfp4, calibration: {python: "data:batches"}}', "uses no calibration data"),
        ("{format: int8, calibration: {samples: 3}}", "has no data"),
        ("{format: nvfp4}", "float4e2m1 begins with SM 100, but the target is for SM 89"),
    ],
)
def test_rejects_a_wrong_declaration(command_line: CommandLine, quantize: str, problem: str) -> None:
    write_project(command_line, manifest_of(quantize))
    (error,) = command_line("plan", expect=2)["errors"]
    assert error["type"] == "ManifestError" and problem in error["text"], error
    assert error["line"] == 11


def test_the_error_about_a_missing_calibrator_names_the_command_that_installs_it(command_line: CommandLine) -> None:
    (command_line.project / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'modelopt':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    write_project(command_line, manifest_of(INT8))
    (error,) = command_line("build", expect=1, environment={"PYTHONPATH": str(command_line.project)})["errors"]
    assert (error["type"], error["hint"]) == ("EnvironmentFault", "pip install 'trtbuild[quantize]'")
