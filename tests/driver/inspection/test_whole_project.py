"""``trtbuild inspect`` without a name shows all packages of a project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest

from tests.conftest import CommandLine
from tests.driver.conftest import Small
from trtbuild.cli.screens.packages import project_screen
from trtbuild.driver.inspection import inspect
from trtbuild.driver.inspection.whole_project import inspect_all
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError

OTHERS = """  later:
    source: {python: "nets:build"}
    inputs: {x: {}, scale: {}}
    profiles: [rows]
  plans:
    source: {python: "nets:build"}
    inputs: {x: {}, scale: {}}
    profiles: [rows]
    outputs: {plans: dist/plans}
"""


@pytest.fixture
def project(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small project after its build, with two models that have no package."""
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(small.cache))
    shutil.copytree(small.project, tmp_path / "project")
    manifest = tmp_path / "project" / "trtbuild.yaml"
    manifest.write_text(manifest.read_text() + OTHERS)
    return tmp_path / "project"


def test_every_package_is_shown_and_every_missing_package_is_named(project: Path) -> None:
    document = inspect_all(Request(project))
    assert list(document.packages) == [inspect(Request(project), "ranker")]
    assert [(entry.model, entry.hint) for entry in document.missing] == [
        ("later", "trtbuild build later"),
        ("plans", "add `package: dist/plans` to its outputs"),
    ]
    lines = [click.unstyle(line) for line in project_screen()(document)]
    assert "dist/ranker: model ranker, float32" in lines[0]
    assert [line for line in lines if line.startswith("later: there is no package at")]


def test_a_directory_with_the_name_of_a_model_does_not_count_as_its_package(project: Path) -> None:
    shutil.copytree(project / "dist" / "ranker", project / "ranker")
    assert [package.path for package in inspect_all(Request(project)).packages] == [str(project / "dist" / "ranker")]


def test_onnx_models_have_a_folder_for_each_model(project: Path) -> None:
    (package,) = inspect_all(Request(project), onnx="onnx").packages
    assert {engine.onnx for engine in package.engines} == {
        "onnx/ranker/ada/model.onnx",
        "onnx/ranker/blackwell/model.onnx",
    }


def test_the_command_needs_no_name(small: Small) -> None:
    document = small.command_line("inspect")
    assert document["schema"] == "trtbuild.inspections/1"
    assert [package["index"]["model"] for package in document["packages"]] == ["ranker"]
    assert json.dumps(document["packages"][0]) == json.dumps(small.command_line("inspect", "ranker"))


def test_rejects_a_project_without_packages(project: Path) -> None:
    shutil.rmtree(project / "dist")
    with pytest.raises(UsageError, match="no model of this project has a package") as caught:
        inspect_all(Request(project))
    assert caught.value.hint == "trtbuild build"
    process = CommandLine(project, project / "cache").run("inspect")
    assert process.returncode == 2
