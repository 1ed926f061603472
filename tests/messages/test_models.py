"""Messages about mistakes in models. A project with one model for each mistake is built once, with ``--keep-going``.

The catalogue has the failed step, the type of the error and the text on the screen, or ``built`` for a model without a
mistake.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper
from torch import nn

from tests.conftest import CommandLine
from tests.messages.catalogue import Case, check_or_write, normalized, read, shown

FILES = ("sources", "graphs")
CASES = [pytest.param(file, case, id=f"{file}: {case.name}") for file in FILES for case in read(file)]

SHARED = """\
version: 1
targets: {ada: {sm: 89}}
profiles:
  rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}
  squares: {x: {min: [1, 8, 8], opt: [4, 8, 8], max: [8, 8, 8]}}
  both: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}, y: {min: [1, 8], opt: [4, 8], max: [9, 8]}}
defaults: {targets: [ada]}
"""


#: Name of an ONNX file with one node → its operator, its domain, and the last size of its input ``x``.
ONNX = {
    "plain": ("Relu", "", 4),
    "strange": ("Gelu", "com.microsoft", 8),
    "refused": ("Det", "", 8),
    "trt_domain": ("TRT_FP4QDQ", "trt", 8),
}


def one_node(operator: str, domain: str, size: int) -> onnx.ModelProto:
    """Return an ONNX model with one node, which is called ``the_node``."""
    shape = ["rows", size, size] if operator == "Det" else ["rows", size]
    tensors = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape if name == "x" else None) for name in "xy"
    ]
    node = helper.make_node(operator, ["x"], ["y"], name="the_node", domain=domain)
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(
        helper.make_graph([node], "net", tensors[:1], tensors[1:]), opset_imports=opsets, ir_version=8
    )


class Branch(nn.Module):
    """A module that multiplies a batch of one row by 2, and all other batches by 3."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x * 2
        return x * 3


@dataclass(frozen=True)
class Built:
    """The result of the build."""

    project: Path
    exit_code: int
    document: Any
    printed: str

    def error(self, model: str) -> Any:
        """The error of a model's failed step, or None."""
        return next((error for error in self.document["errors"] if error["step"].startswith(f"{model}/")), None)


def manifest(case: Case) -> str:
    """The manifest of a case. The lines of its file ``model`` replace or add fields of the model."""
    fields = {"source": f'source: {{python: "zoo.{case.name}:build"}}', "inputs": "inputs: {x: {}}"}
    fields["profiles"] = "profiles: [rows]"
    for line in case.files.get("model", b"").decode().splitlines():
        fields[line.partition(":")[0]] = line
    lines = ["version: 1", "include: [shared/all.yaml]", "models:", f"  {case.name}:"]
    return "\n".join([*lines, *(f"    {line}" for line in fields.values())]) + "\n"


def write_project(project: Path) -> None:
    (project / "manifests/shared").mkdir(parents=True)
    (project / "manifests/shared/all.yaml").write_text(SHARED)
    (project / "manifests/zoo").mkdir()
    for file in FILES:
        for case in read(file):
            (project / f"manifests/{case.name}.yaml").write_text(manifest(case))
            for name, content in case.files.items():
                if name != "model":
                    (project / "manifests/zoo" / name).write_bytes(content)
    weights = {"lin.weight": torch.zeros(8, 16), "lin.bias": torch.zeros(8, dtype=torch.float16)}
    safetensors.torch.save_file(weights, project / "manifests/shapes.safetensors")
    misspelt = {"lin.weigth": torch.zeros(8, 8), "lin.bias": torch.zeros(8)}
    safetensors.torch.save_file(misspelt, project / "manifests/names.safetensors")
    (project / "manifests/text.pt2").write_text("an exported program\n")
    static = torch.export.export(nn.Linear(8, 8).eval(), (torch.zeros(4, 8),))
    torch.export.save(static, project / "manifests/static.pt2")
    for name, (operator, domain, size) in ONNX.items():
        onnx.save(one_node(operator, domain, size), project / f"manifests/{name}.onnx")
    torch.jit.save(torch.jit.script(Branch().eval()), str(project / "manifests/branch.ts"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build all models, once for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project, result_file = base / "bad-models", base / "bad-models.json"
    with open(base / "bad-models.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result_file.exists():
            write_project(project)
            process: subprocess.CompletedProcess[str] = CommandLine(project, base / "bad-models-cache").run(
                "build", "--keep-going", "--json", "-j", "2", timeout_s=1500
            )
            result_file.write_text(json.dumps([process.returncode, json.loads(process.stdout), process.stderr]))
    return Built(project, *json.loads(result_file.read_text()))


@pytest.mark.parametrize(("file", "case"), CASES)
def test_messages_match_the_catalogue(file: str, case: Case, built: Built) -> None:
    error = built.error(case.name)
    if error is None:
        output = "built"
        assert (built.project / "dist" / case.name / "index.json").exists()
    else:
        output = f"{error['step']} {error['type']}\n{shown(error)}"
        failed = next(step for step in built.document["steps"] if step["id"] == error["step"])
        assert failed["verdict"] == "failed"
        assert failed["error"].items() <= error.items(), "the step's error differs from the list of errors"
        lines = iter(built.printed.splitlines())  # an iterator, because the order of lines must be equal, too
        missing = [line for line in shown(error).splitlines() if not any(line.strip() in printed for printed in lines)]
        assert not missing, f"not shown to a person: {missing}"
        assert "trtbuild/stages/" not in error["text"], "the text has frames of trtbuild"
    check_or_write(file, case, normalized(output, built.project))


def test_the_build_continued_and_failed(built: Built) -> None:
    assert built.exit_code == 1
    assert not built.document["ok"]
    assert "Traceback" not in built.printed
