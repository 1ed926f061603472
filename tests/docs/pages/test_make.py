"""With the makefile and the ninja file of docs/make.md, make and ninja rebuild only what is necessary."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm.servers import servers

PAGE = (Path(__file__).parents[3] / "docs" / "make.md").read_text()

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
defaults: {targets: [ada], profiles: [rows]}
models:
  detector:
    source: {python: "models.detector:build"}
    weights: weights/detector.safetensors
    inputs: {x: {}}
  classifier:
    source: {python: "models.classifier:build"}
    inputs: {x: {}}
  embedder:
    source: {python: "models.embedder:build", kwargs: {width: 8}}
    inputs: {x: {}}
"""

MODEL = """\
import torch
from torch import nn

def build(width: int = 8) -> nn.Module:
    torch.manual_seed({seed})
    return nn.Sequential(nn.Linear(8, width), nn.{activation}()).eval()
"""

#: A model that imports `models.shared`.
MODEL_WITH_SHARED_HEAD = """\
import torch
from torch import nn
from models.shared import head

def build() -> nn.Module:
    torch.manual_seed({seed})
    return nn.Sequential(nn.Linear(8, 8), head()).eval()
"""

HEAD = "from torch import nn\n\ndef head() -> nn.Module:\n    return nn.ReLU()\n"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs GNU make")


@dataclass
class Project:
    """A project with three models, the makefile of the page, and a `trtbuild` program in PATH."""

    folder: Path

    def make(self, *arguments: str, program: str = "make", expect: int = 0) -> str:
        """Run make (or `program`), and return its output and errors. `expect` is the exit status."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        environment["PATH"] = f"{self.folder.parent / 'bin'}:{environment['PATH']}"
        environment["TRTBUILD_CACHE_DIR"] = str(self.folder.parent / "cache")
        process = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == expect, process.stdout
        return process.stdout

    def runs(self, *arguments: str, expect: int = 0) -> tuple[list[str], list[str]]:
        """Run make. Return the models for which it calls trtbuild, and the models whose archives it writes."""
        output = self.make(*arguments, expect=expect)
        built_models = re.findall(r"^trtbuild build (\w+)", output, re.MULTILINE)
        return sorted(built_models), sorted(re.findall(r"^tar .*build/(\w+)\.tar", output, re.MULTILINE))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def write_weights(self, seed: int) -> None:
        """Write random weights of the model `detector`."""
        import torch
        from safetensors.torch import save_file

        torch.manual_seed(seed)
        (self.folder / "weights").mkdir(exist_ok=True)
        save_file(
            {"0.weight": torch.randn(8, 8), "0.bias": torch.randn(8)}, self.folder / "weights/detector.safetensors"
        )


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return the project after the first run of make."""
    base = tmp_path_factory.mktemp("make")
    project = Project(base / "project")
    (base / "bin").mkdir()
    script = base / "bin" / "trtbuild"
    # the script starts trtbuild as a fork of a process that has already loaded torch
    start = shlex.join([sys.executable, *servers.forked_command("trtbuild.__main__", os.environ)])
    script.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    script.chmod(0o755)
    (project.folder / "models").mkdir(parents=True)
    (project.folder / "Makefile").write_text(block("make"))
    (project.folder / "trtbuild.yaml").write_text(MANIFEST)
    (project.folder / "models/detector.py").write_text(MODEL.format(seed=1, activation="Tanh"))
    (project.folder / "models/classifier.py").write_text(MODEL_WITH_SHARED_HEAD.format(seed=2))
    (project.folder / "models/embedder.py").write_text(
        MODEL_WITH_SHARED_HEAD.format(seed=3).replace("build()", "build(width)")
    )
    (project.folder / "models/shared.py").write_text(HEAD)
    project.write_weights(0)
    # the three builds share one cache and one state directory
    assert project.runs("-j2") == (["classifier", "detector", "embedder"], ["classifier", "detector", "embedder"])
    return project


@pytest.fixture
def project(built: Project) -> Iterator[Project]:
    """Yield the built project. After the test, restore the sources that the test has changed."""
    before = _sources(built)
    assert built.runs() == ([], [])
    yield built
    after = _sources(built)
    for path, content in before.items():
        if after.get(path) != content:
            path.write_bytes(content)
    built.make()


def _sources(project: Project) -> dict[Path, bytes]:
    paths = [*project.folder.glob("models/*.py"), *project.folder.glob("weights/*"), project.folder / "trtbuild.yaml"]
    return {path: path.read_bytes() for path in paths if path.is_file()}


def test_without_changes_make_runs_nothing(project: Project) -> None:
    assert project.make() == "make: Nothing to be done for 'all'.\n"
    assert project.make("-q") == ""


def test_editing_one_source_builds_its_model(project: Project) -> None:
    project.edit("models/detector.py", "Tanh", "GELU")
    assert project.runs() == (["detector"], ["detector"])
    assert project.runs() == ([], [])


def test_after_a_new_comment_make_calls_trtbuild_once_and_writes_no_archive(project: Project) -> None:
    index = project.folder / "dist/detector/index.json"
    before = index.stat().st_mtime_ns
    project.edit("models/detector.py", "import torch\n", "# which activation?\nimport torch\n")
    assert project.runs() == (["detector"], [])
    assert index.stat().st_mtime_ns == before
    assert project.make() == "make: Nothing to be done for 'all'.\n"


def test_editing_a_shared_module_builds_the_models_that_import_it(project: Project) -> None:
    project.edit("models/shared.py", "ReLU", "SiLU")
    assert project.runs("-j2") == (["classifier", "embedder"], ["classifier", "embedder"])
    assert project.runs() == ([], [])


def test_replacing_weights_builds_their_model(project: Project) -> None:
    project.write_weights(1)
    assert project.runs() == (["detector"], ["detector"])
    assert project.runs() == ([], [])


def test_editing_one_model_in_the_manifest_calls_trtbuild_for_all_and_writes_only_its_archive(project: Project) -> None:
    project.edit("trtbuild.yaml", 'models.classifier:build"}', 'models.classifier:build"}\n    precision: float16')
    assert project.runs() == (["classifier", "detector", "embedder"], ["classifier"])
    assert project.runs() == ([], [])


def test_a_deleted_source_is_an_error_of_trtbuild_not_of_make(project: Project) -> None:
    (project.folder / "models/shared.py").unlink()
    output = project.make("-k", expect=2)
    assert "No rule to make target" not in output
    assert "No module named 'models.shared'" in output
    assert "models/classifier.py:3" in output
    # make calls trtbuild in every run until the source exists again
    assert project.runs("-k", expect=2) == (["classifier", "embedder"], [])
    (project.folder / "models/shared.py").write_text(HEAD)
    assert project.runs() == (["classifier", "embedder"], [])


def test_deleted_weights_and_manifests_are_errors_of_trtbuild_not_of_make(project: Project) -> None:
    (project.folder / "weights/detector.safetensors").unlink()
    output = project.make(expect=2)
    assert "No rule to make target" not in output
    assert "weights/detector.safetensors" in output
    (project.folder / "trtbuild.yaml").unlink()
    output = project.make(expect=2)
    assert "No rule to make target" not in output
    assert "no manifest" in output


def test_a_deleted_package_is_written_again(project: Project) -> None:
    shutil.rmtree(project.folder / "dist/embedder")
    assert project.runs()[0] == ["embedder"]
    assert (project.folder / "dist/embedder/index.json").exists()
    assert project.runs() == ([], [])


def test_a_failed_build_is_tried_again(project: Project) -> None:
    project.edit("models/detector.py", "torch.manual_seed", "raise ValueError('not today')\n    torch.manual_seed")
    for _ in range(2):
        output = project.make(expect=2)
        assert "models/detector.py:5" in output
        assert "not today" in output


def test_an_archive_contains_the_package(project: Project) -> None:
    with tarfile.open(project.folder / "build/detector.tar") as archive:
        assert "detector/index.json" in archive.getnames()


@pytest.mark.skipif(shutil.which("ninja") is None, reason="needs ninja")
def test_the_ninja_file_rebuilds_only_what_is_necessary(project: Project) -> None:
    rules = block("ninja")
    archive_rule = "rule tar\n  command = tar -C dist -cf $out detector\nbuild n.tar: tar dist/detector/index.json\n"
    (project.folder / "build.ninja").write_text(f"{rules}\n{archive_rule}")
    shutil.rmtree(project.folder / "dist/detector")
    output = project.make("-v", program="ninja")
    assert "trtbuild build detector" in output
    assert "tar -C" in output
    assert "no work to do" in project.make(program="ninja")
    project.edit("models/detector.py", "import torch\n", "# a comment for ninja\nimport torch\n")
    output = project.make("-v", program="ninja")
    assert "trtbuild build detector" in output
    assert "tar -C" not in output
    assert "no work to do" in project.make(program="ninja")
    project.edit("models/detector.py", "Tanh", "Sigmoid")
    assert "tar -C" in project.make("-v", program="ninja")
