"""The recipe for GitHub Actions: its jobs run here, command by command, with the logins of the nginx of docs/team-cache."""

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

from tests.store.transports.nginx import Nginx
from trtbuild.store.trust.signing import Signer
from trtbuild.toolchain.libraries import table

ROOT = Path(__file__).parents[2]
RECIPE = yaml.safe_load((ROOT / "docs" / "github-actions" / "build.yml").read_text("utf-8"))

MANIFEST = f"""\
version: 1
targets:
  ada: {{sm: 89, version: "{table.installed_version("tensorrt-rtx")}"}}
profiles:
  rows:
    x: {{min: [1, 8], opt: [4, 8], max: [8, 8]}}
models:
  net:
    source: {{python: "net:build"}}
    inputs: {{x: {{}}}}
    profiles: [rows]
    targets: [ada]
"""

NET = """\
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
"""

#: Distributions that `pip install 'trtbuild[rtx]'` does not install.
TORCH_SIDE = ("torch", "onnx", "nvidia", "triton")


def bare(folder: Path) -> str:
    """A ``PYTHONPATH`` with which this interpreter is one where nothing of torch was installed."""
    (installed,) = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    packages, start = folder / "packages", folder / "start"
    packages.mkdir()
    start.mkdir()
    for entry in os.scandir(installed):
        if not entry.name.lower().startswith(TORCH_SIDE):
            (packages / entry.name).symlink_to(entry.path)
    (start / "sitecustomize.py").write_text(
        "import sys\n"
        f"sys.path[:] = [path for path in sys.path if not path.endswith('site-packages')] + [{str(packages)!r}]\n"
    )
    return str(start)


@dataclass
class Runner:
    """GitHub, as far as the recipe needs it: a fresh checkout for each job, and its commands in order."""

    root: Path
    sources: Path
    keys: dict[str, Signer]
    secrets: dict[str, str] = field(default_factory=dict)
    jobs: int = 0

    def run(self, job: str, *, secrets: bool = True, number: int = 17) -> Job:
        """Run a job of the recipe to its end, or to the first command that fails."""
        self.jobs += 1
        home = self.root / f"runner{self.jobs}"
        home.mkdir()
        checkout = home / "work"
        shutil.copytree(self.sources, checkout)
        known = {f"secrets.{name}": value if secrets else "" for name, value in self.secrets.items()}
        known["github.event.number"] = str(number)
        stated = {**RECIPE["env"], **RECIPE["jobs"][job].get("env", {})}
        environment = {name: self._evaluated(str(value), known) for name, value in stated.items()}
        result = Job(checkout, home)
        for step in RECIPE["jobs"][job]["steps"]:
            assert "env" not in step
            if "run" in step and not result.failed:
                result.add(step["run"], self._shell(step["run"], home, environment))
        return result

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.root))

    def _evaluated(self, text: str, known: Mapping[str, str]) -> str:
        text = text.replace("ci:PUBLIC-KEY", str(self.keys["ci"].trusted))
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known[found[1]], text)

    def _shell(self, command: str, home: Path, stated: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        shims = home / "shims"
        if not shims.exists():
            shims.mkdir()
            pip = shims / "pip"
            pip.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/pip"\n')
            pip.chmod(0o755)
        installed = (home / "pip").read_text() if (home / "pip").exists() else ""
        path = "" if not installed or "torch" in installed else bare(self._folder())
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=home / "work",
            env={
                "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(home),
                "CI": "true",
                "GITHUB_STEP_SUMMARY": str(home / "summary.md"),
                "PYTHONPATH": path + (f":{os.environ['PYTHONPATH']}" if "PYTHONPATH" in os.environ else ""),
                **stated,
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@dataclass
class Job:
    """The result of a job: its commands with their output, and the job summary."""

    checkout: Path
    home: Path
    commands: list[tuple[str, subprocess.CompletedProcess[str]]] = field(default_factory=list)

    def add(self, command: str, done: subprocess.CompletedProcess[str]) -> None:
        self.commands.append((command, done))

    @property
    def failed(self) -> bool:
        return any(done.returncode for _, done in self.commands)

    @property
    def said(self) -> str:
        return "".join(f"$ {command}\n{done.stdout}{done.stderr}" for command, done in self.commands)

    @property
    def summary(self) -> str:
        path = self.home / "summary.md"
        return path.read_text() if path.exists() else ""

    def counts(self) -> tuple[int, int]:
        """(hits, runs) of the build, by the job summary."""
        told = re.search(r"### trtbuild build done: ([^\n]*) in ", self.summary)
        assert told is not None, self.said
        words = dict(reversed(part.split()) for part in told[1].split(", "))
        return int(words.get("hit", 0)), int(words.get("run", 0))


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory, nginx_server: Nginx) -> Iterator[Runner]:
    root = tmp_path_factory.mktemp("github")
    sources = root / "sources"
    sources.mkdir()
    (sources / "trtbuild.yaml").write_text(MANIFEST)
    (sources / "net.py").write_text(NET)
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
    """Names of the entries of a cache."""
    return {path.name for kind in ("ac", "cas") for path in (folder / kind).rglob("*") if path.is_file()}


def test_the_jobs_do_what_the_recipe_says(github: Runner, nginx_server: Nginx) -> None:
    pull_requests = github.root / "pr-cache"
    built = github.run("main")
    assert not built.failed, built.said
    assert built.counts()[1] > 0
    on_main = entries(nginx_server.root)
    assert on_main

    again = github.run("main")  # a fresh runner: all of it comes from the team's cache
    assert not again.failed, again.said
    assert again.counts() == (sum(built.counts()), 0)
    assert "team" in again.summary
    assert entries(nginx_server.root) == on_main

    deployed = github.run("deploy")  # where there is no torch
    assert not deployed.failed, deployed.said
    assert deployed.counts() == (sum(built.counts()), 0)
    assert (deployed.checkout / "dist/net/index.json").read_bytes() == (
        built.checkout / "dist/net/index.json"
    ).read_bytes()

    (github.sources / "net.py").write_text(NET.replace("ReLU", "Tanh"))
    asked = github.run("pull-request")
    assert not asked.failed, asked.said
    assert asked.counts()[1] > 0
    assert entries(nginx_server.root) == on_main
    of_pull_requests = entries(pull_requests)
    assert of_pull_requests

    same = github.run("pull-request")
    assert same.counts() == (sum(asked.counts()), 0), same.said

    refused = github.run("deploy")  # what only a pull request has built is not there for a release
    assert refused.commands[-1][1].returncode == 3, refused.said
    assert "net/" in refused.summary or "net" in refused.said
    assert not (refused.checkout / "dist").exists()

    shutil.copytree(pull_requests / "ac", nginx_server.root / "ac", dirs_exist_ok=True)  # even if its records got there
    shutil.copytree(pull_requests / "cas", nginx_server.root / "cas", dirs_exist_ok=True)
    assert github.run("deploy").commands[-1][1].returncode == 3

    for job in (built, again, deployed, asked, same, refused):
        assert all(secret not in job.said + job.summary for secret in github.secrets.values())
        assert all(password not in job.said + job.summary for password in nginx_server.passwords.values())


def test_a_pull_request_from_a_fork_has_no_secrets_and_builds(github: Runner, nginx_server: Nginx) -> None:
    before = entries(nginx_server.root), entries(github.root / "pr-cache")
    job = github.run("pull-request", secrets=False)
    assert not job.failed, job.said
    assert job.counts()[0] == 0
    assert (entries(nginx_server.root), entries(github.root / "pr-cache")) == before


def test_an_environment_without_torch_cannot_import_torch(tmp_path: Path) -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    for path, has in ((bare(tmp_path), 0), ("", 1)):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False)
        assert done.returncode == has


def test_it_is_a_workflow_that_names_what_there_is() -> None:
    text = (ROOT / "docs" / "github-actions" / "build.yml").read_text("utf-8")
    assert set(RECIPE[True]) == {"push", "pull_request"}  # `on` is a boolean in the YAML that PyYAML reads
    used = set(re.findall(r"secrets\.([A-Z_]+)", text))
    explained = set(re.findall(r"^#  .* (TRTBUILD_[A-Z_]+) ", text, re.MULTILINE))
    assert used == explained
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for extra in re.findall(r"trtbuild\[([a-z,]+)\]", text):
        assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extra.split(","))
    for job in RECIPE["jobs"].values():
        assert json.dumps(job).count("signing_key") == 0
        assert all(set(step) <= {"uses", "with", "run"} for step in job["steps"])
    assert "environment" in RECIPE["jobs"]["main"]
    assert all("environment" not in RECIPE["jobs"][name] for name in ("pull-request", "deploy"))


def stated(job: Any) -> dict[str, str]:
    return {**RECIPE["env"], **job.get("env", {})}


def test_only_main_has_what_main_writes_with() -> None:
    for name, job in RECIPE["jobs"].items():
        text = json.dumps(job)
        assert ("secrets.TRTBUILD_SIGNING_KEY" in text) == (name == "main")
        assert ("secrets.TRTBUILD_REMOTES" in text) == (name == "main")
        assert stated(job)["TRTBUILD_READ_DOMAINS"] == "ci"
