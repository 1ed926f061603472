"""Fixtures that several folders share: running the real command line on a real project."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.store.remote.nginx import Nginx, running
from tests.warm import command_line as with_servers
from tests.warm.servers import servers
from trtbuild.driver import configuration
from trtbuild.driver.workers import pool

# Whoever runs the tests has a configuration and keys of their own: none of it counts here, and nothing is added to it.
_OWN = tempfile.mkdtemp(prefix="trtbuild-tests-")
atexit.register(shutil.rmtree, _OWN, ignore_errors=True)
os.environ.update(XDG_CONFIG_HOME=f"{_OWN}/config", XDG_STATE_HOME=f"{_OWN}/state")
for _variable in (*configuration.VARIABLES, "TRTBUILD_CONFIG"):
    os.environ.pop(_variable, None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job ignores Ctrl-C, and so would the builds that tests interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class CommandLine:
    """`trtbuild` in a project, as a user runs it: another process.

    Its workers are copies of one that has loaded torch (`tests.warm`), unless they are to be `cold`, or variables are given
    that would tell the difference.
    """

    project: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)
    cold: bool = False

    def __call__(
        self, *arguments: str, expect: int = 0, environment: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> Any:
        """Run with ``--json`` and return the document; fail the test when the exit code is not `expect`."""
        done = self.run(*arguments, "--json", environment=environment, timeout_s=timeout_s)
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Run and return what came of it."""
        variables = {**os.environ, "TRTBUILD_CACHE_DIR": str(self.cache), **self.environment, **(environment or {})}
        start = ["-m", "trtbuild.cli.main"]
        folder = None if self.cold else servers.folder_for(variables)
        if folder is not None:
            start = [with_servers.__file__, folder]
        return subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=self.project,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture(autouse=True, scope="session")
def _workers_of_this_process() -> None:
    """What tests build in this process gets its workers in the same way."""
    with_servers.replace_command(pool, lambda: servers.folder_for(os.environ))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test with the mark `cold_workers`, and the fixtures that are made for it, get workers as users get them."""
    off = servers.off
    servers.off = off or item.get_closest_marker("cold_workers") is not None
    try:
        return (yield)
    finally:
        servers.off = off


def ran(document: Any) -> dict[str, int]:
    """Stage → number of steps that ran, without zeros."""
    return {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}


def step(document: Any, identifier: str) -> Any:
    """One step of a document."""
    (found,) = [entry for entry in document["steps"] if entry["id"] == identifier]
    return found


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """An empty project with a cache of its own."""
    (tmp_path / "project").mkdir()
    return CommandLine(tmp_path / "project", tmp_path / "cache")


@dataclass(frozen=True)
class BuiltExamples:
    """The example manifests, built. `document` is what ``trtbuild build --json`` said."""

    project: Path
    cache: Path
    document: Any

    def key(self, identifier: str) -> str:
        """The key of a step, such as ``vit/engine/layers.0@ada``."""
        return str(step(self.document, identifier)["key"])

    def index(self, model: str) -> Any:
        """The index of a model's package."""
        return json.loads((self.project / "dist" / model / "index.json").read_bytes())


@pytest.fixture(scope="session")
def built_examples(tmp_path_factory: pytest.TempPathFactory) -> BuiltExamples:
    """A copy of manifests/, built once per test run, whatever the number of its processes.

    ``$TRTBUILD_TEST_CACHE`` is a cache directory that is kept and used again.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "examples"
    cache = Path(os.environ.get("TRTBUILD_TEST_CACHE") or base / "examples-cache").absolute()
    with open(base / "examples.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not project.exists():
            source = Path(__file__).parents[1] / "manifests"
            shutil.copytree(source, project / "manifests", ignore=shutil.ignore_patterns("__pycache__"))
        document = CommandLine(project, cache, cold=True)("build", timeout_s=1200)
    return BuiltExamples(project, cache, document)


@pytest.fixture(scope="session")
def nginx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """The real nginx with the documentation's recipe."""
    with running(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture
def nginx(nginx_server: Nginx) -> Nginx:
    """The real nginx, with no entries."""
    nginx_server.empty()
    return nginx_server
