"""The measured projects are valid, and a file is written only if its contents differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import peers, projects
from benchmarks.architectures import ARCHITECTURES, write_architecture
from tests.conftest import CommandLine, ran
from trtbuild import manifest


def modification_times(folder: Path) -> dict[str, int]:
    """Return path → modification time, for all files and folders."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_writes_many_models_for_several_targets(tmp_path: Path) -> None:
    projects.write_many(tmp_path, model_count=3, target_count=2)
    models = manifest.load(tmp_path).models
    assert [model.name for model in models] == ["m000", "m001", "m002"]
    assert all([target.sm for target in model.targets] == [80, 86] for model in models)
    before = modification_times(tmp_path)
    projects.write_many(tmp_path, model_count=3, target_count=2)
    assert modification_times(tmp_path) == before


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_can_be_traced(command_line: CommandLine, name: str) -> None:
    write_architecture(command_line.project, name, small=True)
    (model,) = manifest.load(command_line.project).models
    assert [entry.name for entry in model.inputs] == [entry.name for entry in ARCHITECTURES[name].inputs]
    assert ran(command_line("build", "--until", "trace")) == {"trace": 1}


def test_writes_a_vit_with_two_profile_sets(tmp_path: Path) -> None:
    projects.write_vit(tmp_path, layers=1, hidden=64, image=32, granularity=True, sms=(86, 89, 120), profile_sets=2)
    first, second = manifest.load(tmp_path).models
    assert first.source == second.source
    assert first.profiles != second.profiles
    assert len(first.targets) == 3


def test_an_edit_of_a_layer_is_one_line_and_can_be_undone(tmp_path: Path) -> None:
    projects.write_vit(tmp_path, layers=1, hidden=64, image=32)
    source = tmp_path / "models" / "vit.py"
    before = source.read_text()
    projects.edit_layer(tmp_path, 3, "Tanh")
    assert set(source.read_text().splitlines()) - set(before.splitlines()) == {
        "    model.layers[3].mlp.activation_fn = torch.nn.Tanh()"
    }
    projects.undo_edits(tmp_path)
    assert source.read_text() == before


@pytest.mark.parametrize("kind", ["many", "vit"])
def test_the_flag_build_may_follow_the_folder(kind: str) -> None:
    options = projects.parse_arguments([kind, "DIR", "--targets", "2", "--build"])
    assert (options["folder"], options["target_count"], options["build"]) == (Path("DIR"), 2, True)
    assert not projects.parse_arguments([kind, "DIR"])["build"]


def test_replace_weights_changes_the_tensors_of_one_layer_only(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    names = [f"layers.{layer}.{name}" for layer in range(12) for name in ("weight", "bias")]
    before = {name: np.zeros(3, np.float32) for name in names}
    save_file(before, path)
    projects.replace_weights(path, 1)
    after = load_file(path)
    changed = [name for name in names if not np.array_equal(before[name], after[name])]
    assert changed == ["layers.1.weight", "layers.1.bias"]


def test_the_copy_project_has_a_target_for_each_source(tmp_path: Path) -> None:
    peers.write_copy_project(tmp_path, 2)
    assert {path.name for path in (tmp_path / "sources").iterdir()} == {"0000.txt", "0001.txt"}
    for name in ("0000.txt", "0001.txt"):
        assert f"targets/{name}: sources/{name}\n\tcp" in (tmp_path / "Makefile").read_text()
    before = modification_times(tmp_path / "sources")
    peers.write_copy_project(tmp_path, 2)
    assert modification_times(tmp_path / "sources") == before
