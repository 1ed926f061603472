"""`trtbuild init`: the files and targets that it writes, its warnings, and the errors before it writes anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import CommandLine, ran
from trtbuild import manifest
from trtbuild.driver.answers import new_project
from trtbuild.driver.answers.documents import NewFile
from trtbuild.driver.answers.new_project import Toolchain
from trtbuild.errors import UsageError

RTX = Toolchain("tensorrt-rtx", "1.7.1.116", ())


def test_init_and_build_make_an_engine(command_line: CommandLine) -> None:
    document = command_line("init")
    assert document["schema"] == "trtbuild.init/1"
    assert [(entry["path"], entry["action"]) for entry in document["files"]] == [
        ("models/example.py", "written"),
        ("trtbuild.yaml", "written"),
    ]
    plan = command_line("plan")
    assert plan["ok"]
    built = command_line("build")
    assert ran(built)["engine"] >= 1
    index = json.loads((command_line.project / "dist/example/index.json").read_bytes())
    assert list(index["targets"]) == document["targets"]


def test_the_manifest_has_comments_and_the_output_names_the_next_command(command_line: CommandLine) -> None:
    process = command_line.run("init")
    assert process.returncode == 0
    assert "trtbuild build" in process.stdout
    text = (command_line.project / "trtbuild.yaml").read_text()
    assert text.count("#") > 10
    assert "# turing: {sm: 75}        # GeForce RTX 20, T4; float16 only" in text


def test_the_manifest_of_a_named_source_marks_the_fields_to_fill_in(command_line: CommandLine) -> None:
    (command_line.project / "models").mkdir()
    (command_line.project / "models" / "vit.py").write_text("def build(): ...\n")
    document = command_line("init", "models.vit:build")
    assert document["model"] == "vit"
    assert document["warnings"] == []
    assert [entry["path"] for entry in document["files"]] == ["trtbuild.yaml"]
    assert (command_line.project / "trtbuild.yaml").read_text().count("CHANGE ME") == 2
    assert command_line("plan")["ok"]


def test_a_missing_source_is_a_warning(command_line: CommandLine) -> None:
    document = command_line("init", "nets.det:define")
    assert "nets/det.py does not exist yet" in document["warnings"][0]


@pytest.mark.parametrize("source", ["models/vit.py", "models.vit", "models.vit:", ":build", "models..vit:build", "1:2"])
def test_rejects_names_that_are_not_sources(command_line: CommandLine, source: str) -> None:
    document = command_line("init", source, expect=2)
    assert "module.path:callable" in document["errors"][0]["text"]
    assert list(command_line.project.iterdir()) == []


@pytest.mark.parametrize("existing", ["trtbuild.yaml", "manifests/a.yaml", "models/example.py"])
def test_nothing_is_overwritten(command_line: CommandLine, existing: str) -> None:
    path = command_line.project / existing
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    process = command_line.run("init")
    assert process.returncode == 2
    assert existing in process.stderr
    assert "nothing was written" in process.stderr
    assert path.read_text() == "mine"
    assert [entry for entry in command_line.project.rglob("*") if entry.is_file()] == [path]


def test_missing_entries_are_added_to_gitignore(command_line: CommandLine) -> None:
    (command_line.project / ".gitignore").write_text("*.pyc\n/cache")
    document = command_line("init")
    (entry,) = [entry for entry in document["files"] if entry["path"] == ".gitignore"]
    assert entry["action"] == "extended"
    assert (command_line.project / ".gitignore").read_text() == "*.pyc\n/cache\n/.trtbuild/\n/dist/\n"
    assert new_project._extend_gitignore(command_line.project) == NewFile(
        path=".gitignore", action="unchanged", text="it already contains .trtbuild/, dist/, cache/"
    )


@pytest.mark.parametrize(
    ("toolchain", "targets"),
    [
        (RTX, [89]),
        (Toolchain("tensorrt-rtx", "1.7.1.116", (120, 120)), [120]),
        (Toolchain("tensorrt-rtx", "1.7.1.116", (75,)), [75]),
        (Toolchain("tensorrt-rtx", "1.7.1.116", (90,)), [89]),
        (Toolchain("tensorrt-rtx", None, ()), [89]),
        (Toolchain("tensorrt", "10.9.0", (90, 100)), [90, 100]),
        (Toolchain("tensorrt", "10.9.0", ()), [89]),
        (Toolchain("tensorrt", "10.9.0", (87,)), [87]),
        (Toolchain("tensorrt", "10.9.0", (75,)), [75]),
    ],
)
@pytest.mark.parametrize("source", [None, "models.vit:build"])
def test_targets_are_the_gpus_of_this_machine_or_a_default_that_can_be_built(
    tmp_path: Path, toolchain: Toolchain, targets: list[int], source: str | None
) -> None:
    document = new_project.create(tmp_path, source, toolchain)
    project = manifest.load(tmp_path)
    (model,) = project.models
    assert [target.sm for target in model.targets] == targets
    assert {target.toolchain for target in model.targets} == {toolchain.name}
    assert [target.name for target in model.targets] == document.targets
    assert model.precision == ("float16" if 75 in targets and toolchain.name == "tensorrt-rtx" else "float32")
    warnings = " ".join(document.warnings)
    assert ("SM 90, which tensorrt-rtx does not support" in warnings) == (toolchain.gpu_sms == (90,))
    assert ("pip install" in document.next[0]) == (toolchain.version is None)


def test_rejects_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        new_project.create(tmp_path / "nowhere", None, RTX)
