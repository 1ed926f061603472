"""Errors before a step starts: the lookup of its record fails, or a library is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.driver.building.build import build
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project import environment
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import InternalError, StoreError, ToolchainMissing

MANIFEST = """\
version: 1
targets: {{ada: {{sm: 89}}}}
profiles: {{rows: {{x: {{min: [1, 4], opt: [2, 4], max: [8, 4]}}}}}}
models:
  net: {{source: {{python: "net:build"}}, inputs: {{x: {{}}}}, profiles: [rows], targets: [ada]{field}}}
"""
OTHER_MODEL = """\
  other: {source: {python: "net:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""
QUANTIZE = ", quantize: {format: int8_weight_only}"


@pytest.fixture(autouse=True)
def cache_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text("")


@pytest.mark.parametrize(("fault", "kind"), [(KeyError("a"), InternalError), (OSError("no descriptors"), StoreError)])
def test_an_error_of_the_lookup_before_a_step_makes_the_step_fail(
    fault: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_new_record(*_: object) -> None:
        raise fault

    monkeypatch.setattr(StoreLookups, "find_new_record", find_new_record)
    (tmp_path / "trtbuild.yaml").write_text(MANIFEST.format(field=""))
    result = build(Workspace(Request(tmp_path)), Watcher())
    ((_, error),) = result.outcome.failed.values()
    assert isinstance(error, kind)
    assert "net/trace" in error.text


def test_a_calibration_is_refused_before_it_starts_if_torch_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trtbuild.yaml").write_text(MANIFEST.format(field=QUANTIZE))
    installed = environment.installed_version
    monkeypatch.setattr(environment, "installed_version", lambda name: None if name == "torch" else installed(name))
    workspace = Workspace(Request(tmp_path))
    plans = workspace.plans()
    assert [step.id for step in plans["net"].steps.values() if step.verdict == "run"] == ["net/calibrate"]
    with pytest.raises(ToolchainMissing, match="torch is not installed"):
        workspace.check_environment(plans)


def test_keep_going_builds_the_models_that_need_no_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trtbuild.yaml").write_text(MANIFEST.format(field="") + OTHER_MODEL)
    check, tried = environment.check_torch_libraries, []

    def check_one(model: str, facts: Any) -> None:
        if model == "net":
            raise ToolchainMissing("torch is not installed")
        check(model, facts)

    def find_new_record(lookups: StoreLookups, plan: ModelPlan, step: Step) -> None:
        tried.append(step.id)
        raise OSError("it begins")

    monkeypatch.setattr(environment, "check_torch_libraries", check_one)
    monkeypatch.setattr(StoreLookups, "find_new_record", find_new_record)
    with pytest.raises(ToolchainMissing, match="torch is not installed"):
        build(Workspace(Request(tmp_path)), Watcher())
    assert tried == []
    result = build(Workspace(Request(tmp_path, keep_going=True)), Watcher())
    assert tried == ["other/trace"] and [error.text for error in result.errors] == [
        "net is not built: torch is not installed"
    ]
    with pytest.raises(ToolchainMissing, match="torch is not installed"):  # no model can be built
        build(Workspace(Request(tmp_path, models=("net",), keep_going=True)), Watcher())
