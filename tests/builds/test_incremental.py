"""The steps that run after a change: one project, built many times by the real command line with the real compiler.

The tests run in order. Each starts with the project of the test before it, except the last, which has its own project.
Most tests change a file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import CommandLine, ran, step
from tests.projects import ADA_AND_AMPERE, BLOCKS, WITH_WEIGHTS, copy_project, edit, write_weights

#: A sitecustomize module. If it is on the module path of a process, every import of torch fails in this process.
FORBID_TORCH = """\
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def trtbuild(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("incremental")
    project = base / "project"
    copy_project("blocks", project, WITH_WEIGHTS)
    write_weights(project / "net.safetensors", BLOCKS)
    return CommandLine(project, base / "cache")


def test_the_first_build_runs_everything_and_equal_layers_convert_once(trtbuild: CommandLine) -> None:
    document = trtbuild("build")
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 1, "convert": 1, "engine": 3, "package": 1}
    assert document["totals"]["convert"]["hit"] == 2
    assert step(document, "net/engine/layers.1@ada")["reason"]["code"] == "new"


def test_the_second_build_runs_nothing(trtbuild: CommandLine) -> None:
    document = trtbuild("build")
    assert ran(document) == {}
    assert all(entry["verdict"] == "hit" for entry in document["steps"])


def test_an_unrelated_file_runs_nothing(trtbuild: CommandLine) -> None:
    (trtbuild.project / "models" / "other.py").write_text("x = 1\n")
    (trtbuild.project / "notes.txt").write_text("hello\n")
    assert ran(trtbuild("build")) == {}


def test_a_comment_or_a_rename_runs_trace_and_nothing_after_it(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models" / "layer.py", "import torch\n", "import torch  # the library\n")
    document = trtbuild("build")
    assert ran(document) == {"trace": 1}
    reason = step(document, "net/trace")["reason"]
    assert reason["code"] == "changed"
    assert [change["part"] for change in reason["changed"]] == ["file:models/layer.py"]

    edit(
        trtbuild.project / "models" / "net.py",
        "for layer in self.layers:\n            x = layer(x)",
        "for part in self.layers:\n            x = part(x)",
    )
    edit(trtbuild.project / "models" / "net.py", "return x", "renamed = x\n        return renamed")
    assert ran(trtbuild("build")) == {"trace": 1}


def test_one_changed_layer_is_one_conversion_and_one_engine(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models" / "net.py", "(1.0, 1.0, 1.0)", "(1.0, 2.0, 1.0)")
    document = trtbuild("build")
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 1, "convert": 1, "engine": 1, "package": 1}
    assert step(document, "net/engine/layers.1@ada")["verdict"] == "run"
    assert [change["part"] for change in step(document, "net/engine/layers.1@ada")["reason"]["changed"]] == ["onnx"]


def test_why_names_the_part_that_changed_also_afterwards(trtbuild: CommandLine) -> None:
    document = trtbuild("why", "net/engine/layers.1@ada")
    (engine,) = document["steps"]
    assert engine["verdict"] == "hit"
    assert [change["part"] for change in engine["last_run"]["reason"]["changed"]] == ["onnx"]
    shown = trtbuild.run("why", "net/trace").stdout
    assert "file:models/net.py" in shown


def test_an_imported_file_with_another_operator_runs_all_steps_but_one_conversion(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models" / "layer.py", "torch.relu", "torch.tanh")
    document = trtbuild("build")
    # two of the three layers are equal and share a conversion
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 1, "convert": 2, "engine": 3, "package": 1}


def test_the_opt_of_a_profile_runs_the_trace_and_the_engines(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "opt: [4, 8]", "opt: [6, 8]")
    document = trtbuild("build")
    # the trace runs the model with inputs of the opt sizes. The traced program stays the same, so lower does not run
    assert ran(document) == {"trace": 1, "engine": 3, "package": 1}
    changed = step(document, "net/engine/layers.0@ada")["reason"]["changed"]
    assert [(change["part"], change["was"], change["now"]) for change in changed] == [
        ("profiles.0.i0.opt[0]", "4", "6")
    ]


def test_a_builder_setting_runs_the_engines(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "trtbuild.yaml", "optimization_level: 3", "optimization_level: 2")
    document = trtbuild("build")
    assert ran(document) == {"engine": 3, "package": 1}
    changed = step(document, "net/engine/layers.0@ada")["reason"]["changed"]
    assert [(change["part"], change["was"], change["now"]) for change in changed] == [
        ("settings.optimization_level", "3", "2")
    ]


def test_a_new_target_runs_only_engines_for_this_target(trtbuild: CommandLine) -> None:
    for old, new in ADA_AND_AMPERE:
        edit(trtbuild.project / "trtbuild.yaml", old, new)
    document = trtbuild("build")
    assert ran(document) == {"engine": 3, "package": 1}
    assert {e["id"] for e in document["steps"] if e["verdict"] == "run"} == {
        "net/engine/layers.0@ampere",
        "net/engine/layers.1@ampere",
        "net/engine/layers.2@ampere",
        "net/package",
    }


def test_renaming_a_profile_and_reordering_its_keys_run_no_engine(trtbuild: CommandLine) -> None:
    manifest = trtbuild.project / "trtbuild.yaml"
    edit(manifest, "rows:", "lines:")
    edit(manifest, "[rows]", "[lines]")
    edit(manifest, "x: {min: [1, 8], opt: [6, 8], max: [8, 8]}", "x: {max: [8, 8], opt: [6, 8], min: [1, 8]}")
    assert ran(trtbuild("build")) == {"package": 1}


def test_a_fine_tune_of_one_layer_imports_no_torch_and_runs_one_engine_per_target(
    trtbuild: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORBID_TORCH)
    blocked = {"PYTHONPATH": str(tmp_path)}
    write_weights(trtbuild.project / "net.safetensors", BLOCKS, changed="layers.2.linear.weight")
    document = trtbuild("build", "--target", "ada", environment=blocked)
    assert ran(document) == {"engine": 1, "package": 1}
    assert [change["part"] for change in step(document, "net/engine/layers.2@ada")["reason"]["changed"]] == [
        "weights.w0.sha256"
    ]
    assert ran(trtbuild("build", environment=blocked)) == {"engine": 1, "package": 1}
    # an edit that needs a trace shows that torch cannot be imported in this environment
    layer = trtbuild.project / "models" / "layer.py"
    layer.write_text(layer.read_text() + "\n")
    failed = trtbuild("build", environment=blocked, expect=1)
    assert "must not be imported here" in failed["errors"][0]["text"]
    assert ran(trtbuild("build")) == {"trace": 1}


def test_outputs_that_were_deleted_come_back_without_running_anything(trtbuild: CommandLine) -> None:
    deleted, other = (trtbuild.project / "dist/net/engines/ada" / f"layers.{layer}.plan" for layer in (0, 1))
    content, other_mtime_ns = deleted.read_bytes(), other.stat().st_mtime_ns
    deleted.unlink()
    assert ran(trtbuild("build")) == {}
    assert deleted.read_bytes() == content
    assert other.stat().st_mtime_ns == other_mtime_ns, "other files are not written again"


def test_frozen_succeeds_if_no_step_has_to_run_and_exits_3_otherwise(trtbuild: CommandLine) -> None:
    assert ran(trtbuild("build", "--frozen")) == {}
    edit(trtbuild.project / "trtbuild.yaml", "optimization_level: 2", "optimization_level: 1")
    completed = trtbuild.run("build", "--frozen")
    assert completed.returncode == 3
    assert "net/engine/layers.0@ada" in completed.stderr
    edit(trtbuild.project / "trtbuild.yaml", "optimization_level: 1", "optimization_level: 2")


def test_after_an_edit_is_undone_no_step_runs(trtbuild: CommandLine) -> None:
    edit(trtbuild.project / "models" / "net.py", "(1.0, 2.0, 1.0)", "(1.0, 1.0, 1.0)")
    assert "trace" in ran(trtbuild("build"))
    edit(trtbuild.project / "models" / "net.py", "(1.0, 1.0, 1.0)", "(1.0, 2.0, 1.0)")
    assert ran(trtbuild("build")) == {}


def test_a_copy_elsewhere_hits_the_same_cache(trtbuild: CommandLine, tmp_path: Path) -> None:
    copy = tmp_path / "another place"
    shutil.copytree(trtbuild.project, copy, ignore=shutil.ignore_patterns(".trtbuild", "dist"))
    colleague = CommandLine(copy, trtbuild.cache, {"LC_ALL": "C", "TZ": "Asia/Tokyo", "USER": "somebody"})
    assert ran(colleague("build")) == {}
    assert (copy / "dist" / "net" / "index.json").read_bytes() == (
        trtbuild.project / "dist" / "net" / "index.json"
    ).read_bytes()


def test_force_runs_every_step_once(trtbuild: CommandLine) -> None:
    document = trtbuild("build", "--force", "--target", "ada")
    assert ran(document) == {"trace": 1, "lower": 1, "partition": 1, "convert": 2, "engine": 3, "package": 1}
    assert {step(document, f"net/engine/layers.{k}@ada")["reason"]["code"] for k in range(3)} == {"forced"}


def test_a_missing_blob_is_built_again_when_it_is_needed(trtbuild: CommandLine) -> None:
    document = trtbuild("build")
    plan = step(document, "net/engine/layers.0@ada")["outputs"]["plan"]["sha256"]
    (trtbuild.cache / "cas" / plan[:2] / plan).unlink()
    assert ran(trtbuild("build")) == {}, "no step needs the blob, because the output is in place"
    (trtbuild.project / "dist" / "net" / "engines" / "ada" / "layers.0.plan").unlink()
    document = trtbuild("build")
    assert ran(document) == {"engine": 1}
    assert step(document, "net/engine/layers.0@ada")["reason"]["code"] == "evicted"


def test_a_library_in_another_folder_of_pythonpath_runs_the_trace(command_line: CommandLine) -> None:
    """The model also appends a folder of the project to ``sys.path``. This folder is the same in each build."""
    project = command_line.project
    copy_project("mlp", project)
    imports = "import sys, torch\nsys.path.append(__file__[:-6] + 'own')\nimport library, own_library\n"
    edit(project / "net.py", "import torch\n", imports)
    (project / "own").mkdir()
    (project / "own" / "own_library.py").write_text("")
    for folder in ("first", "second"):
        (project.parent / folder).mkdir()
        (project.parent / folder / "library.py").write_text(f"name = '{folder}'\n")
    folders = {name: f"{project.parent / name}{os.pathsep}{Path(__file__).parents[2]}" for name in ("first", "second")}
    command_line("build", environment={"PYTHONPATH": folders["first"]})
    same = command_line("plan", environment={"PYTHONPATH": folders["first"]})
    assert step(same, "net/trace")["verdict"] == "hit"
    other = command_line("plan", environment={"PYTHONPATH": folders["second"]})
    assert [change["part"] for change in step(other, "net/trace")["reason"]["changed"]] == ["import:library"]
