"""Errors before a step starts: the lookup of its record fails, or a library is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

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
