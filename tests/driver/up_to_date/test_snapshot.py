"""Builds after which trtbuild writes no snapshot for the null build."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.projects import copy_project
from trtbuild import null_build
from trtbuild.core.recipes.record import Output
from trtbuild.driver.building.build import build
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.up_to_date import snapshot
from trtbuild.store.remote.files import ReadFile
from trtbuild.store.remote.store import Found, RemoteStore


def test_a_build_that_lost_the_race_for_an_engine_leaves_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine was faster, so the remote has its engine. The outputs of this build have the engine of this machine.
    The next build must write them again, with the engine of the remote."""
    publish = RemoteStore.publish

    def lose_race(self: RemoteStore, found: Found, read: ReadFile, **options: bool) -> Found:
        if found.record.recipe.stage != "engine":
            return publish(self, found, read, **options)
        theirs = replace(found.record, outputs={**found.record.outputs, "plan": Output("0" * 64, 1)})
        return replace(found, record=theirs, document=theirs.to_bytes())

    copy_project("mlp", tmp_path / "project")
    (tmp_path / "share").mkdir()
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:file://{tmp_path}/share")
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(RemoteStore, "publish", lose_race)
    workspace = Workspace(Request(tmp_path / "project"))
    result = build(workspace, Watcher())
    assert result.ok and workspace.store.reports()[0].lost_races == 1
    assert not snapshot.keep(workspace, result, ["build"], lambda document: "")
    # This build sends nothing, because the engine is a hit. The start of the process is set to now: a directory of
    # `sys.path` that changed after the start would prevent a snapshot.
    time.sleep(0.05)
    monkeypatch.setattr(null_build, "STARTED_NS", time.time_ns())
    workspace = Workspace(Request(tmp_path / "project"))
    assert snapshot.keep(workspace, build(workspace, Watcher()), ["build"], lambda document: "")
