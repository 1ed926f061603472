"""A build for a target of the toolchain `tensorrt` uses all GPUs. The GPUs and the toolchain are fakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project
from trtbuild.driver.building import build as build_module
from trtbuild.driver.building.build import Request, Workspace, build
from trtbuild.driver.building.execution.gpu_limit import GpuLimit
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project import environment
from trtbuild.driver.workers import worker_process
from trtbuild.toolchain.libraries import distributions

WORKER = Path(__file__).with_name("engine_worker.py")
VERSION = "8.6.0"


def test_a_build_compiles_an_engine_on_each_gpu_and_keys_do_not_depend_on_the_gpus(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the target keeps the name `ada` of the project, but its SM is 90
    target = f"ada: {{sm: 90, toolchain: tensorrt, version: {VERSION}}}"
    copy_project("two_models", command_line.project, ("ada: {sm: 89}", target))
    command_line("build", "--until", "convert")  # these steps need no GPU
    planned_keys = {
        step["id"]: step["key"] for step in command_line("plan", expect=2)["steps"] if step["stage"] == "engine"
    }

    original_version, original_command = distributions.installed_version, worker_process.command
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(command_line.cache))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(environment, "torch_versions", lambda: None)  # as on a machine that only compiles engines
    monkeypatch.setattr(environment, "device_sms", lambda: (90, 90))
    monkeypatch.setattr(build_module, "GpuLimit", lambda inner: GpuLimit(inner, lambda: (90, 90), lambda gpu: None))
    monkeypatch.setattr(
        distributions, "installed_version", lambda name: VERSION if name == "tensorrt" else original_version(name)
    )
    monkeypatch.setattr(
        worker_process,
        "command",
        lambda kind, store, project: (
            [sys.executable, str(WORKER), str(jobs), "2", str(store)]
            if kind == "engine"
            else original_command(kind, store, project)
        ),
    )
    workspace = Workspace(Request(command_line.project, jobs=2, until="engine"))
    result = build(workspace, Watcher())
    assert result.ok, [str(error) for _, error in result.outcome.failed.values()]
    records = {step: ran.record for step, (_, ran) in result.outcome.ran.items()}
    assert {step: record.recipe.key for step, record in records.items()} == planned_keys and len(planned_keys) == 2
    assert sorted(workspace.store.get_bytes(record.outputs["plan"].sha256) for record in records.values()) == [
        b"1",
        b"3",
    ]
