"""The jobs of the workflow docs/github-actions/build.yml share results. The cache is the server of docs/team-cache.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.projects import copy_project, edit
from tests.store.transports.nginx import Nginx
from trtbuild.store.trust.signing import Signer
from trtbuild.toolchain.libraries import table

ROOT = Path(__file__).parents[3]
WORKFLOW = yaml.safe_load((ROOT / "docs" / "github-actions" / "build.yml").read_text("utf-8"))


#: Prefixes of packages that `pip install 'trtbuild[rtx]'` does not install: torch, ONNX and torch's GPU libraries.
TORCH_PREFIXES = ("torch", "onnx", "nvidia", "triton")


def path_without_torch(folder: Path, *also_hidden: str) -> str:
    """Return a ``PYTHONPATH`` that hides packages whose names begin with one of `TORCH_PREFIXES` or `also_hidden`."""
    (site_packages,) = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    packages, start = folder / "packages", folder / "start"
    packages.mkdir()
    start.mkdir()
    for entry in os.scandir(site_packages):
        if not entry.name.lower().startswith((*TORCH_PREFIXES, *also_hidden)):
            (packages / entry.name).symlink_to(entry.path)
    (start / "sitecustomize.py").write_text(
        "import sys\n"
        f"sys.path[:] = [path for path in sys.path if not path.endswith('site-packages')] + [{str(packages)!r}]\n"
    )
    return str(start)


@dataclass
class Runner:
    """Runs jobs of the workflow as GitHub does, each in a new checkout of the folder `sources`."""

    root: Path
    sources: Path
    keys: dict[str, Signer]
    secrets: dict[str, str] = field(default_factory=dict)
    job_count: int = 0

    def run(self, job: str, *, secrets: bool = True, number: int = 17) -> Job:
        """Run a job until a command fails. `number` is the number of the pull request.

        If `secrets` is False, the secrets are empty, as for a pull request from a fork.
        """
        self.job_count += 1
        home = self.root / f"runner{self.job_count}"
        home.mkdir()
        checkout = home / "work"
        shutil.copytree(self.sources, checkout)
        expressions = {f"secrets.{name}": value if secrets else "" for name, value in self.secrets.items()}
        expressions["github.event.number"] = str(number)
        variables = {**WORKFLOW["env"], **WORKFLOW["jobs"][job].get("env", {})}
        environment = {name: self._with_values(str(value), expressions) for name, value in variables.items()}
        job_result = Job(checkout, home)
        for step in WORKFLOW["jobs"][job]["steps"]:
            assert "env" not in step
            if "run" in step and not job_result.failed:
                job_result.add(step["run"], self._shell(step["run"], home, environment))
        return job_result

    def _with_values(self, text: str, expressions: Mapping[str, str]) -> str:
        text = text.replace("ci:PUBLIC-KEY", str(self.keys["ci"].trusted))
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: expressions[match[1]], text)

    def _shell(self, command: str, home: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        shims = home / "shims"
        if not shims.exists():
            shims.mkdir()
            pip = shims / "pip"
            pip.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/pip"\n')
            pip.chmod(0o755)
        # torch is hidden if an earlier command of the job has installed trtbuild without it
        pip_arguments = (home / "pip").read_text() if (home / "pip").exists() else ""
        path = (
            ""
            if not pip_arguments or "torch" in pip_arguments
            else path_without_torch(Path(tempfile.mkdtemp(dir=self.root)))
        )
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=home / "work",
            env={
                "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(home),
                "CI": "true",
                "GITHUB_STEP_SUMMARY": str(home / "summary.md"),
                "PYTHONPATH": path + (f":{os.environ['PYTHONPATH']}" if "PYTHONPATH" in os.environ else ""),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@dataclass
class Job:
    """A job that has run, with its commands and their processes."""

    checkout: Path
    home: Path
    commands: list[tuple[str, subprocess.CompletedProcess[str]]] = field(default_factory=list)

    def add(self, command: str, process: subprocess.CompletedProcess[str]) -> None:
        self.commands.append((command, process))

    @property
    def failed(self) -> bool:
        return any(process.returncode for _, process in self.commands)

    @property
    def output(self) -> str:
        return "".join(f"$ {command}\n{process.stdout}{process.stderr}" for command, process in self.commands)

    @property
    def summary(self) -> str:
        path = self.home / "summary.md"
        return path.read_text() if path.exists() else ""

    def counts(self) -> tuple[int, int]:
        """Return (hits, runs) of the build, from the job summary."""
        match = re.search(r"### trtbuild build done: ([^\n]*) in ", self.summary)
        assert match is not None, self.output
        words = dict(reversed(part.split()) for part in match[1].split(", "))
        return int(words.get("hit", 0)), int(words.get("run", 0))


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory, nginx_server: Nginx) -> Iterator[Runner]:
    root = tmp_path_factory.mktemp("github")
    version = table.installed_version("tensorrt-rtx")
    sources = copy_project("mlp", root / "sources", ("{sm: 89}", f'{{sm: 89, version: "{version}"}}'))
    (root / "pr-cache").mkdir()
    keys = {name: Signer.new(name) for name in ("ci", "pr")}
    nginx_server.empty()
    secrets = {
        "TRTBUILD_REMOTES": f"team=rw:{nginx_server.url_of('writer')}",
        "TRTBUILD_SIGNING_KEY": keys["ci"].text(),
        "TRTBUILD_READ_REMOTES": f"team=r:{nginx_server.url_of('reader')}",
        "TRTBUILD_PR_REMOTES": f"team=r:{nginx_server.url_of('reader')}\npr=rw:file://{root}/pr-cache\n",
        "TRTBUILD_PR_KEY": keys["pr"].text(),
    }
    yield Runner(root, sources, keys, secrets)
    nginx_server.empty()


def entries(folder: Path) -> set[str]:
    return {path.name for kind in ("ac", "cas") for path in (folder / kind).rglob("*") if path.is_file()}


def test_the_jobs_of_the_workflow_share_results_as_documented(github: Runner, nginx_server: Nginx) -> None:
    pull_requests = github.root / "pr-cache"
    built = github.run("main")
    assert not built.failed, built.output
    assert built.counts()[1] > 0
    on_main = entries(nginx_server.root)
    assert on_main

    second = github.run("main")  # a new runner: all results come from the team's cache
    assert not second.failed, second.output
    assert second.counts() == (sum(built.counts()), 0)
    assert "team" in second.summary
    assert entries(nginx_server.root) == on_main

    deployed = github.run("deploy")  # a machine without torch
    assert not deployed.failed, deployed.output
    assert deployed.counts() == (sum(built.counts()), 0)
    assert (deployed.checkout / "dist/net/index.json").read_bytes() == (
        built.checkout / "dist/net/index.json"
    ).read_bytes()

    edit(github.sources / "net.py", "ReLU", "Tanh")
    pull_request = github.run("pull-request")
    assert not pull_request.failed, pull_request.output
    assert pull_request.counts()[1] > 0
    assert entries(nginx_server.root) == on_main
    of_pull_requests = entries(pull_requests)
    assert of_pull_requests

    repeated = github.run("pull-request")
    assert repeated.counts() == (sum(pull_request.counts()), 0), repeated.output

    refused = github.run("deploy")  # a release does not use the results of a pull request
    assert refused.commands[-1][1].returncode == 3, refused.output
    assert "net/trace" in refused.output
    assert not (refused.checkout / "dist").exists()

    # a release does not use these results from the team's cache either
    shutil.copytree(pull_requests / "ac", nginx_server.root / "ac", dirs_exist_ok=True)
    shutil.copytree(pull_requests / "cas", nginx_server.root / "cas", dirs_exist_ok=True)
    assert github.run("deploy").commands[-1][1].returncode == 3

    for job in (built, second, deployed, pull_request, repeated, refused):
        assert all(secret not in job.output + job.summary for secret in github.secrets.values())
        assert all(password not in job.output + job.summary for password in nginx_server.passwords.values())


def test_a_pull_request_from_a_fork_has_no_secrets_and_builds(github: Runner, nginx_server: Nginx) -> None:
    before = entries(nginx_server.root), entries(github.root / "pr-cache")
    job = github.run("pull-request", secrets=False)
    assert not job.failed, job.output
    assert job.counts()[0] == 0
    assert (entries(nginx_server.root), entries(github.root / "pr-cache")) == before


def test_the_python_path_hides_torch(tmp_path: Path) -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    for path, expected_status in ((path_without_torch(tmp_path), 0), ("", 1)):
        process = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False)
        assert process.returncode == expected_status


def test_the_workflow_names_existing_secrets_and_extras() -> None:
    text = (ROOT / "docs" / "github-actions" / "build.yml").read_text("utf-8")
    assert set(WORKFLOW[True]) == {"push", "pull_request"}  # PyYAML reads the key `on` as a boolean
    used = set(re.findall(r"secrets\.([A-Z_]+)", text))
    explained = set(re.findall(r"^#  .* (TRTBUILD_[A-Z_]+) ", text, re.MULTILINE))
    assert used == explained
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for extra in re.findall(r"trtbuild\[([a-z,]+)\]", text):
        assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extra.split(","))
    for job in WORKFLOW["jobs"].values():
        assert json.dumps(job).count("signing_key") == 0
        assert all(set(step) <= {"uses", "with", "run"} for step in job["steps"])
    assert "environment" in WORKFLOW["jobs"]["main"]
    assert all("environment" not in WORKFLOW["jobs"][name] for name in ("pull-request", "deploy"))


def variables(job: Any) -> dict[str, str]:
    return {**WORKFLOW["env"], **job.get("env", {})}


def test_only_the_main_job_can_write_to_the_teams_cache_and_sign_as_ci() -> None:
    for name, job in WORKFLOW["jobs"].items():
        text = json.dumps(job)
        assert ("secrets.TRTBUILD_SIGNING_KEY" in text) == (name == "main")
        assert ("secrets.TRTBUILD_REMOTES" in text) == (name == "main")
        assert variables(job)["TRTBUILD_READ_DOMAINS"] == "ci"
