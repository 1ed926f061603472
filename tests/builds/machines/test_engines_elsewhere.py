"""Builds on two machines: one runs the steps before the engine, the other one compiles. Each machine lacks some packages.

TensorRT-RTX is the toolchain of the target `ada`. The toolchain of the target `hopper` is not installed on the machines.
"""

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
from tests.projects import copy_project

PACKAGES_OF_TORCH = ("torch", "functorch", "torchgen", "onnx", "onnxscript", "transformers")


@dataclass
class Machine(CommandLine):
    """A command line whose Python lacks some packages. `run` ignores `environment`."""

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
    """Create a virtual environment without the packages whose names begin with one of `names`. Returns its interpreter."""
    packages = Path(sysconfig.get_paths()["purelib"])
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    for entry in packages.iterdir():
        if not entry.name.lower().startswith(names) and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    (site / "trtbuild-here.pth").write_text(f"{Path(__file__).parents[3]}\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def until_convert(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """The command line of a project whose steps up to convert were built."""
    base = tmp_path_factory.mktemp("elsewhere")
    hopper = '  hopper: {sm: 90, toolchain: tensorrt, version: "8.6.0"}'
    changes = ("  ada: {sm: 89}\n", f"  ada: {{sm: 89}}\n{hopper}\n"), ("targets: [ada]", "targets: [hopper, ada]")
    copy_project("mlp", base / "project", *changes)
    trtbuild = CommandLine(base / "project", base / "cache")
    document = trtbuild("build", "--until", "convert")
    assert document["ok"] and document["outputs"] == []
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 2, "convert": 2}
    assert {entry["verdict"] for entry in document["steps"] if entry["stage"] in ("engine", "package")} == {"skipped"}
    assert not (base / "project" / "dist").exists()
    return trtbuild


@pytest.fixture(scope="module")
def compiling_machine(until_convert: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with a toolchain, without torch, and with copies of the project and of the cache."""
    base = tmp_path_factory.mktemp("worker")
    python = python_without(base / "python", *PACKAGES_OF_TORCH)
    shutil.copytree(until_convert.project, base / "project", ignore=shutil.ignore_patterns(".trtbuild"))
    shutil.copytree(until_convert.cache, base / "cache")
    for name in ("torch", "onnx", "onnxscript", "transformers"):
        imported = subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in imported.stderr, name
    return Machine(base / "project", base / "cache", python=python)


def test_a_second_build_until_a_stage_is_all_hits(until_convert: CommandLine) -> None:
    second_build = until_convert("build", "--until", "convert")
    assert ran(second_build) == {} and second_build["ok"]
    assert until_convert("build", "--until", "trace", "--frozen")["ok"]


def test_a_target_without_its_toolchain_is_an_error_unless_no_engine_is_needed(until_convert: CommandLine) -> None:
    plan = until_convert("plan", "--target", "hopper", expect=2)
    assert "tensorrt, which is not installed" in plan["errors"][0]["text"]
    assert until_convert("plan", "--target", "hopper", "--until", "convert")["errors"] == []
    assert until_convert("build", "--target", "hopper", expect=2)["steps"] == []


def test_settings_that_the_targets_release_lacks_are_errors_before_any_work(
    until_convert: CommandLine, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(until_convert.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    trtbuild = CommandLine(project, tmp_path / "cache")
    manifest = (project / "trtbuild.yaml").read_text()
    for line, message in (
        ("precision: bfloat16", "does not compute in bfloat16"),
        ("builder: {strip_plan: true}", "no builder.strip_plan"),
    ):
        (project / "trtbuild.yaml").write_text(f"{manifest}    {line}\n")
        document = trtbuild("build", "--until", "convert", "--target", "hopper", expect=2)
        assert message in document["errors"][0]["text"] and document["errors"][0]["line"] == 4


def test_a_machine_without_torch_builds_the_engines_from_the_cache_alone(compiling_machine: Machine) -> None:
    document = compiling_machine("build", "--target", "ada")
    assert ran(document) == {"engine": 1, "package": 1}
    assert "torch is not installed here" in step(document, "net/trace")["reason"]["text"]
    assert (compiling_machine.project / "dist" / "net" / "index.json").is_file()


def test_a_machine_without_a_parser_finds_partitions_that_the_parser_of_another_toolchain_has_checked(
    until_convert: CommandLine, tmp_path: Path
) -> None:
    python = python_without(tmp_path / "python", *PACKAGES_OF_TORCH, "tensorrt")
    project = tmp_path / "project"
    shutil.copytree(until_convert.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    machine = Machine(project, until_convert.cache, python=python)
    plan = machine("plan", "--target", "hopper", expect=2)
    assert {entry["id"]: entry["verdict"] for entry in plan["steps"]} == {
        "net/trace": "hit",
        "net/lower": "hit",
        "net/partition": "hit",
        "net/convert/model": "hit",
        "net/engine/model@hopper": "run",
        "net/package": "run",
    }
    assert "the parser of tensorrt-rtx" in step(plan, "net/partition")["reason"]["text"]
    plan_with_parser = until_convert("plan", "--target", "hopper", expect=2)
    assert step(plan, "net/partition")["key"] == step(plan_with_parser, "net/partition")["key"]


def test_a_missing_parser_is_an_error_before_any_work(until_convert: CommandLine, tmp_path: Path) -> None:
    machine = Machine(until_convert.project, tmp_path / "cache", python=python_without(tmp_path / "python", "tensorrt"))
    document = machine("build", "--until", "convert", "--target", "hopper", expect=2)
    assert "no parser is available" in document["errors"][0]["text"]
    assert document["errors"][0]["hint"] == "pip install 'trtbuild[rtx]'"


def test_an_exported_bundle_is_enough_where_no_parser_is_installed(until_convert: CommandLine, tmp_path: Path) -> None:
    export = ("cache", "export", str(tmp_path / "bundle"), "--target", "hopper")
    until_convert(*export, expect=1)  # fails because there is no engine yet
    until_convert(*export, "--until", "convert")
    python = python_without(tmp_path / "python", *PACKAGES_OF_TORCH, "tensorrt")
    project = tmp_path / "project"
    shutil.copytree(until_convert.project, project, ignore=shutil.ignore_patterns(".trtbuild"))
    machine = Machine(project, tmp_path / "cache", python=python)
    machine("cache", "import", str(tmp_path / "bundle"))
    plan = machine("plan", "--target", "hopper", expect=2)
    assert step(plan, "net/convert/model")["verdict"] == "hit"
