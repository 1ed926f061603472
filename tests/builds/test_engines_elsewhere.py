"""Steps without a GPU run here, and engines are built where their GPU is. The tests run the real command line in limited
environments. TensorRT-RTX stands for a toolchain there; that of `hopper` is installed nowhere here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import CommandLine, ran, step

MANIFEST = """\
version: 1
targets:
  ada: {sm: 89}
  hopper: {sm: 90, toolchain: tensorrt, version: "8.6.0"}
profiles: {rows: {x: {min: [1, 16], opt: [4, 16], max: [8, 16]}}}
defaults: {targets: [hopper, ada], profiles: [rows]}
models:
  net: {source: {python: "models.net:build"}, inputs: {x: {}}}
"""
NET = """\
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
"""
TORCH_SIDE = ("torch", "functorch", "torchgen", "onnx", "onnxscript", "transformers")


@dataclass
class Machine(CommandLine):
    """A command line whose Python has not all that this one has."""

    python: str = sys.executable

    def run(  # type: ignore[override]
        self, *arguments: str, environment: object = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "trtbuild.cli.main", *arguments],
            cwd=self.project,
            env={**os.environ, "TRTBUILD_CACHE_DIR": str(self.cache)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def python_without(folder: Path, *names: str) -> str:
    """A new environment with all that is installed here, except packages whose name begins with one of `names`."""
    here = Path(sysconfig.get_paths()["purelib"])
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    for entry in here.iterdir():
        if not entry.name.lower().startswith(names) and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    (site / "trtbuild-here.pth").write_text(f"{Path(__file__).parents[2]}\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """The project, with everything done that needs no GPU."""
    base = tmp_path_factory.mktemp("elsewhere")
    (base / "project" / "models").mkdir(parents=True)
    (base / "project" / "trtbuild.yaml").write_text(MANIFEST)
    (base / "project" / "models" / "net.py").write_text(NET)
    trtbuild = CommandLine(base / "project", base / "cache")
    document = trtbuild("build", "--until", "convert")
    assert document["ok"] and document["outputs"] == []
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 2, "convert": 2}
    assert {entry["verdict"] for entry in document["steps"] if entry["stage"] in ("engine", "package")} == {"skipped"}
    assert not (base / "project" / "dist").exists()
    return trtbuild


@pytest.fixture(scope="module")
def gpu_worker(here: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with a toolchain and a copy of the project and the cache, and nothing of the torch side."""
    base = tmp_path_factory.mktemp("worker")
    python = python_without(base / "python", *TORCH_SIDE)
    shutil.copytree(here.project, base / "project", ignore=shutil.ignore_patterns(".trtbuild"))
    shutil.copytree(here.cache, base / "cache")
    for name in ("torch", "onnx", "onnxscript", "transformers"):
        done = subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in done.stderr, name
    return Machine(base / "project", base / "cache", python=python)


def test_until_is_a_hit_again(here: CommandLine) -> None:
    again = here("build", "--until", "convert")
    assert ran(again) == {} and again["ok"]
    assert here("build", "--until", "trace", "--frozen")["ok"]


def test_plan_says_what_cannot_be_built_here_unless_it_is_not_asked_for(here: CommandLine) -> None:
    found = here("plan", "--target", "hopper", expect=2)
    assert "tensorrt, which is not installed" in found["errors"][0]["text"]
    assert here("plan", "--target", "hopper", "--until", "convert")["errors"] == []
    assert here("build", "--target", "hopper", expect=2)["steps"] == []


def test_what_no_release_can_is_said_before_any_work(here: CommandLine, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(here.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    trtbuild = CommandLine(project, tmp_path / "cache")
    for line, says in (
        ("precision: bfloat16", "does not compute in bfloat16"),
        ("builder: {strip_plan: true}", "no builder.strip_plan"),
    ):
        (project / "trtbuild.yaml").write_text(
            f"{MANIFEST}    {line}\n".replace("inputs: {x: {}}}\n    ", "inputs: {x: {}}, ") + "}\n"
        )
        document = trtbuild("build", "--until", "convert", "--target", "hopper", expect=2)
        assert says in document["errors"][0]["text"] and document["errors"][0]["line"] == 4


def test_a_machine_without_torch_builds_the_engines_from_the_cache_alone(gpu_worker: Machine) -> None:
    document = gpu_worker("build", "--target", "ada")
    assert ran(document) == {"engine": 1, "package": 1}
    assert "torch is not installed here" in step(document, "net/trace")["reason"]["text"]
    assert (gpu_worker.project / "dist" / "net" / "index.json").is_file()


def test_what_was_cut_by_a_stand_in_is_found_where_there_is_none(here: CommandLine, tmp_path: Path) -> None:
    python = python_without(tmp_path / "python", *TORCH_SIDE, "tensorrt")
    project = tmp_path / "project"
    shutil.copytree(here.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    worker = Machine(project, here.cache, python=python)
    found = worker("plan", "--target", "hopper", expect=2)
    assert {entry["id"]: entry["verdict"] for entry in found["steps"]} == {
        "net/trace": "hit",
        "net/lower": "hit",
        "net/partition": "hit",
        "net/convert/model": "hit",
        "net/engine/model@hopper": "run",
        "net/package": "run",
    }
    assert "the parser of tensorrt-rtx" in step(found, "net/partition")["reason"]["text"]
    assert (
        step(found, "net/partition")["key"]
        == step(here("plan", "--target", "hopper", expect=2), "net/partition")["key"]
    )


def test_what_has_to_be_cut_where_no_parser_is_is_said_before_any_work(here: CommandLine, tmp_path: Path) -> None:
    worker = Machine(here.project, tmp_path / "cache", python=python_without(tmp_path / "python", "tensorrt"))
    document = worker("build", "--until", "convert", "--target", "hopper", expect=2)
    assert "no parser is available" in document["errors"][0]["text"]
    assert document["errors"][0]["hint"] == "pip install 'trtbuild[rtx]'"


def test_what_is_exported_is_enough_where_no_parser_is(here: CommandLine, tmp_path: Path) -> None:
    bundle = ("cache", "export", str(tmp_path / "bundle"), "--target", "hopper")
    here(*bundle, expect=1)  # there is no engine yet, and a message says so
    here(*bundle, "--until", "convert")
    python = python_without(tmp_path / "python", *TORCH_SIDE, "tensorrt")
    project = tmp_path / "project"
    shutil.copytree(here.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    worker = Machine(project, tmp_path / "cache", python=python)
    worker("cache", "import", str(tmp_path / "bundle"))
    found = worker("plan", "--target", "hopper", expect=2)
    assert step(found, "net/convert/model")["verdict"] == "hit"
