"""The pipelines of docs/ci.md: one test runs the GitHub jobs. The others check YAML files, and GitLab's child pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pipelines.pipeline import ACTION, ROOT, THIS_ACTION, Pipeline
from tests.docs.pipelines.test_github_actions import path_without_torch
from tests.projects import copy_project
from trtbuild.toolchain.libraries import table

WORKFLOW = yaml.safe_load((ROOT / "docs" / "github-actions" / "matrix.yml").read_text("utf-8"))
GITLAB = yaml.safe_load((ROOT / "docs" / "gitlab" / "engines.yml").read_text("utf-8"))
EMPTY_MATRIX = '{"include": []}'
#: With this expression, the workflow chooses the extra with which trtbuild is installed.
EXTRA_EXPRESSION = "matrix.runs-on == 'ubuntu-latest' && 'rtx' || 'tensorrt'"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A pipeline of two models, each with two targets. `plan_flags` gives each model its own job in the matrix."""
    version = table.installed_version("tensorrt-rtx")
    targets = f'ada: {{sm: 89, version: "{version}"}}\n  blackwell: {{sm: 120, version: "{version}"}}'
    sources = copy_project(
        "two_models",
        tmp_path / "sources",
        ("ada: {sm: 89}", targets),
        ("targets: [ada]", "targets: [ada, blackwell], reference: true"),
    )
    (tmp_path / "shared").mkdir()
    return Pipeline(tmp_path, sources, plan_flags="--job-duration 1")


def test_the_jobs_of_the_workflow_build_every_step_once(pipeline: Pipeline) -> None:
    jobs = WORKFLOW["jobs"]
    planned = json.loads(pipeline.run_github_job(jobs["plan"], {})["matrix"])["include"]
    assert [entry["models"] for entry in planned] == [["first"], ["second"]] * 2
    assert (pipeline.root / "pip").read_text().startswith("install ACTION --")  # no extra

    converted = json.loads(pipeline.run_github_job(jobs["convert"], {})["matrix"])["include"]
    assert [(entry["name"], entry["target"], entry["sm"], entry["runs-on"]) for entry in converted] == [
        ("ada sm_89 1/2", "ada", 89, "ubuntu-latest"),
        ("ada sm_89 2/2", "ada", 89, "ubuntu-latest"),
        ("blackwell sm_120 1/2", "blackwell", 120, "ubuntu-latest"),
        ("blackwell sm_120 2/2", "blackwell", 120, "ubuntu-latest"),
    ]
    ran_before = pipeline.steps_that_ran()
    assert not any(stage == "engine" for stage, _ in ran_before)

    for entry in reversed(converted):  # GitHub starts the jobs in any order
        pipeline.run_github_job(jobs["engines"], {"matrix.command": entry["command"], EXTRA_EXPRESSION: "rtx"})
    ran = pipeline.steps_that_ran()
    assert set(ran - ran_before) and {stage for stage, _ in ran - ran_before} == {"engine"}
    assert sum(1 for stage, _ in ran if stage == "engine") == 4

    pipeline.run_github_job(jobs["package"], {})  # its first command fails if an engine is missing
    assert {stage for stage, _ in pipeline.steps_that_ran() - ran} == {"package"}
    assert set(pipeline.steps_that_ran().values()) == {1}
    for model in ("first", "second"):
        assert set(json.loads((pipeline.clones[-1] / "dist" / model / "index.json").read_text())["targets"]) == {
            "ada",
            "blackwell",
        }

    # without PyTorch and TensorRT: no job if the cache has all results, and two jobs if it is empty
    without_libraries = path_without_torch(pipeline.root, "tensorrt")
    for cache, job_count in ((pipeline.cache, 0), (pipeline.root / "empty", 2)):
        assert len(_plan_in_new_process(pipeline, cache, without_libraries)["include"]) == job_count


def _plan_in_new_process(pipeline: Pipeline, cache: Path, python_path: str) -> Any:
    """Return the matrix that trtbuild prints in a fresh clone, with this ``PYTHONPATH`` and team cache."""
    process = subprocess.run(
        [sys.executable, "-m", "trtbuild", "plan", "--matrix", "github"],
        cwd=pipeline.clone(),
        env={**os.environ, "PYTHONPATH": python_path, "TRTBUILD_REMOTES": f"team=r:file://{cache}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_the_workflow_skips_jobs_of_an_empty_matrix() -> None:
    jobs = WORKFLOW["jobs"]
    assert jobs["convert"]["if"] == f"needs.plan.outputs.matrix != '{EMPTY_MATRIX}'"
    assert jobs["engines"]["if"] == f"needs.convert.outputs.matrix != '{EMPTY_MATRIX}'"
    assert jobs["engines"]["strategy"]["matrix"] == "${{ fromJSON(needs.convert.outputs.matrix) }}"
    assert jobs["engines"]["runs-on"] == "${{ matrix.runs-on }}"
    assert set(jobs["package"]["needs"]) == {"plan", "convert", "engines"} and "!failure()" in jobs["package"]["if"]


def test_the_commands_of_the_action_read_its_inputs_from_variables() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) == ("shell" in step)


def test_the_workflow_uses_only_inputs_that_the_action_has() -> None:
    used = {
        name
        for job in WORKFLOW["jobs"].values()
        for step in job["steps"]
        for name in step.get("with", {})
        if step.get("uses") == THIS_ACTION
    }
    assert used and used <= set(ACTION["inputs"])


def _child_pipeline(folder: Path, matrix: Any) -> Any:
    """Return the child pipeline that the GitLab job `convert` writes for a matrix."""
    (folder / "matrix.json").write_text(json.dumps(matrix))
    (script,) = [line for line in GITLAB["convert"]["script"] if line.startswith("python - <<'END'")]
    subprocess.run(
        ["bash", "-e", "-c", script.replace("python", sys.executable, 1)], cwd=folder, check=True, timeout=60
    )
    return yaml.safe_load((folder / "engines.yml").read_text())


def test_gitlabs_child_pipeline_has_a_job_for_each_entry_of_the_matrix(tmp_path: Path) -> None:
    command = "trtbuild build --until engine --target ada -- 'a b'"
    entries = [
        {"name": "ada sm_89", "command": command, "runs-on": "ubuntu-latest"},
        {"name": "hopper sm_90 1/2", "command": "x", "runs-on": ["h100", "gpu"]},
        {"name": "hopper sm_90 2/2", "command": "y", "runs-on": "h100"},
    ]
    jobs = _child_pipeline(tmp_path, {"include": entries})
    assert list(jobs) == [f"engines {entry['name']}" for entry in entries]
    assert [job["tags"] for job in jobs.values()] == [[], ["h100", "gpu"], ["h100"]]
    assert [job["script"][-1] for job in jobs.values()] == [command, "x", "y"]
    assert "trtbuild[rtx]" in jobs["engines ada sm_89"]["script"][0]
    assert "trtbuild[tensorrt]" in jobs["engines hopper sm_90 2/2"]["script"][0]


def test_gitlabs_child_pipeline_is_never_empty(tmp_path: Path) -> None:
    assert list(_child_pipeline(tmp_path, json.loads(EMPTY_MATRIX))) == ["nothing to build"]


def test_gitlabs_jobs_run_the_commands_of_the_workflow() -> None:
    workflow = json.dumps(WORKFLOW)
    for job in ("convert", "package"):
        commands = [line for line in GITLAB[job]["script"] if line.startswith("trtbuild ")]
        assert commands and all(command.partition(" > ")[0] in workflow for command in commands)
