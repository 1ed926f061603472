"""``trtbuild plan --matrix github``: commands for ``sh``, labels, estimates from the history, and errors."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.projects import copy_project, edit
from trtbuild.core.planning.graph import Reason
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.answers.matrix import matrix
from trtbuild.driver.project.history import History, LastRun
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import ConfigurationError, ConfigurationErrors, UsageError

TARGETS = "ada: {sm: 89}\n  hopper: {sm: 90, toolchain: tensorrt, version: 8.6.0}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models that are in no cache. One target needs a GPU."""
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in (
        ("TRTBUILD_REMOTES", ""),
        ("TRTBUILD_CONFIG", "/dev/null"),
        ("TRTBUILD_MATRIX", "sm_90=h100,gpu"),
    ):
        monkeypatch.setenv(name, value)
    changes = ("ada: {sm: 89}", TARGETS), ("targets: [ada]", "targets: [ada, hopper]")
    return copy_project("two_models", tmp_path / "project", *changes)


def _arguments(entry: Any, folder: Path) -> list[str]:
    """The arguments that ``trtbuild`` gets if ``sh`` runs the command of an entry."""
    show = "trtbuild() { for word; do printf '%s\\0' \"$word\"; done; }\n"
    process = subprocess.run(
        ["sh", "-c", show + entry["command"]], cwd=folder, capture_output=True, check=True, timeout=30
    )
    assert process.stderr == b"" and "\n" not in entry["command"]
    return process.stdout.decode().split("\0")[:-1]


def _entries(project: Path, job_duration_s: float = 600, **changes: Any) -> list[dict[str, Any]]:
    """The entries of the matrix, one for each job. `changes` are fields of the `Request`."""
    return json.loads(json.dumps(matrix(Request(project, **changes), job_duration_s).to_json()))["include"]  # type: ignore[no-any-return]


def test_an_entry_has_the_fields_that_a_workflow_reads(project: Path) -> None:
    command = "trtbuild build --until engine --target {} -- first second"
    assert _entries(project) == [
        {
            "name": f"{target} sm_{sm}",
            "target": target,
            "sm": sm,
            "models": ["first", "second"],
            "command": command.format(target),
            "runs-on": runner,
        }
        for target, sm, runner in (("ada", 89, "ubuntu-latest"), ("hopper", 90, ["h100", "gpu"]))
    ]
    assert [entry["models"] for entry in _entries(project, models=("second",), targets=("ada",))] == [["second"]]


def test_a_single_label_is_a_string(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_MATRIX", "sm_90=h100 sm_89=not-for-engines-that-need-no-gpu")
    assert [entry["runs-on"] for entry in _entries(project)] == ["ubuntu-latest", "h100"]


def test_names_are_quoted_for_the_shell(project: Path) -> None:
    hostile = "it's $(touch broken) `touch broken`; touch broken & -n.yaml"
    (project / "trtbuild.yaml").rename(project / hostile)
    edit(project / hostile, "first:", "_o.x_1:")
    for entry in _entries(project, files=(hostile,), upgrade=True):
        flags = ["--target", entry["target"], "-f", hostile, "--upgrade"]
        assert _arguments(entry, project) == ["build", "--until", "engine", *flags, "--", "_o.x_1", "second"]
        assert shlex.split(entry["command"])[1:] == _arguments(entry, project)
    assert not (project / "broken").exists()


def test_models_with_unknown_partitions_are_estimated_from_the_engines_of_the_last_build(project: Path) -> None:
    # without a history, each model counts as one engine step of about a second
    assert [entry["models"] for entry in _entries(project, targets=("ada",), job_duration_s=1.5)] == [
        ["first"],
        ["second"],
    ]
    history, reason = History(project / ".trtbuild"), Reason("new", "")
    for step, duration_s in (
        ("first/engine/p0@ada", 400.0),
        ("first/engine/p1@ada", 300.0),
        ("first/engine/p0@hopper", 1e6),
        ("second/engine/model@ada", 200.0),
        ("second/trace", 1e6),
    ):
        history.note_recipe(step, Recipe("engine", 1, (("step", step),)), LastRun(reason, duration_s))
    history.save()
    assert [len(_entries(project, seconds, targets=("ada",))) for seconds in (901, 899)] == [1, 2]  # 400 + 300 + 200 s


def test_a_damaged_history_is_ignored(project: Path) -> None:
    (project / ".trtbuild").mkdir(exist_ok=True)
    (project / ".trtbuild" / "history.json").write_text('{\n"first/engine/model@ada":{"ran":{"duration_s":"x"}}\n}')
    assert len(_entries(project)) == 2
    entry = '{"recipe":[],"ran":{"reason":{"code":"new","text":"","changed":[]},"duration_s":1e999}}'
    (project / ".trtbuild" / "history.json").write_text(f'{{\n"first/engine/model@ada":{entry}\n}}')
    assert len(_entries(project)) == 2


def test_every_target_without_a_label_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_MATRIX", "sm_80=a100")
    with pytest.raises(ConfigurationError, match=r"'hopper' \(SM 90, tensorrt, linux-x86_64\)") as error:
        _entries(project)
    assert 'TRTBUILD_MATRIX="sm_90=self-hosted,gpu"' in str(error.value.hint) and error.value.exit_code == 2
    assert len(_entries(project, targets=("ada",))) == 1  # the other target needs no label
    edit(project / "trtbuild.yaml", "ada: {sm: 89}", "ada: {sm: 89, platform: linux-aarch64}")
    with pytest.raises(ConfigurationErrors) as errors:
        _entries(project)
    assert len(errors.value.problems) == 2


@pytest.mark.parametrize(
    "changes", [{"force": True}, {"until": "convert"}, {"targets": ("adaa",)}, {"models": ("firs",)}]
)
def test_requests_without_a_matrix_are_usage_errors(project: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        _entries(project, **changes)
    assert error.value.hint
