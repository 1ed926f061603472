"""Fixtures for several folders: the real command line in a real project, and a real nginx."""

from __future__ import annotations

import atexit
import fcntl
import gc
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

from tests.store.transports.nginx import Nginx, running
from tests.warm import command_line as warm_command_line
from tests.warm.servers import servers
from trtbuild.driver import configuration

# the tests neither use nor change the user's configuration and keys
_CONFIGURATION = tempfile.mkdtemp(prefix="trtbuild-tests-")
atexit.register(shutil.rmtree, _CONFIGURATION, ignore_errors=True)
os.environ.update(XDG_CONFIG_HOME=f"{_CONFIGURATION}/config", XDG_STATE_HOME=f"{_CONFIGURATION}/state")
for _variable in (*configuration.VARIABLES, "TRTBUILD_CONFIG"):
    os.environ.pop(_variable, None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # shell scripts start background jobs with SIGINT ignored. Builds that tests interrupt must not inherit this
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: The slowest test files, the slowest first. Tests run in several processes. These end at about the same time if slow files
#: are first.
SLOWEST = (
    "operators/test_operators.py",
    "driver/verification/test_models.py",
    "driver/in_program/test_compiling.py",
    "builds/test_incremental.py",
    "builds/test_sources.py",
    "driver/in_program/test_dynamo.py",
    "test_null_build.py",
    "driver/outputs/test_pt2.py",
    "driver/in_program/test_saving.py",
    "builds/test_incremental_equals_fresh.py",
    "examples/test_packages.py",
    "stages/program/test_consistency.py",
    "driver/workers/test_loader_variables.py",
    "guide/test_settings.py",
    "guide/test_ahead_of_time.py",
    "driver/cache/test_rebuilding.py",
    "driver/cache/test_transfer.py",
    "builds/test_value_ranges.py",
    "docs/pages/test_make.py",
    "driver/answers/test_differences.py",
    "cli/terminal/test_terminal.py",
    "faults/test_kills.py",
    "builds/faults/test_disks_and_caches.py",
    "builds/test_two_builds.py",
    "driver/farm/test_processes.py",
    "builds/machines/test_builds_on_workers.py",
    "builds/machines/test_verification_on_workers.py",
    "messages/test_models.py",
    "builds/test_user_code.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of `SLOWEST` first. The tests of a file keep their order."""
    positions = {Path(__file__).parent / name: position for position, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: positions.get(item.path, len(positions)))


def pytest_collection_finish() -> None:
    """Freeze the modules of all tests. Otherwise the garbage collection of each trace would examine two million objects."""
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, freeze the objects that the file has imported and cached."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@dataclass
class CommandLine:
    """Runs `trtbuild` in a project, in another process.

    To save time, the command and its workers are forked from servers that have loaded their modules (`tests.warm`). They
    are new processes if `cold` is True, if the test has the mark `cold_workers`, or if the environment changes a variable
    that a forked process does not read again.
    """

    project: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)
    cold: bool = False

    def __call__(
        self, *arguments: str, expect: int = 0, environment: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> Any:
        """Run with ``--json``. Returns the document (None without output). Fails if the exit code is not `expect`."""
        process = self.run(*arguments, "--json", environment=environment, timeout_s=timeout_s)
        assert process.returncode == expect, (
            f"exit {process.returncode}\n{process.stdout[-2000:]}\n{process.stderr[-6000:]}"
        )
        return json.loads(process.stdout) if process.stdout.strip() else None

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "TRTBUILD_CACHE_DIR": str(self.cache), **self.environment, **(environment or {})}
        return subprocess.run(
            [sys.executable, *servers.forked_command("trtbuild.cli.main", variables, cold=self.cold), *arguments],
            cwd=self.project,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture(autouse=True, scope="session")
def _workers_of_this_process() -> None:
    """Let builds in this process use forked workers, as builds of `CommandLine` do."""
    warm_command_line.replace_command(lambda: servers.folder_for(os.environ))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Do not use `servers` in a test with the mark `cold_workers`, or in the fixtures that are created for this test."""
    were_off = servers.are_off
    servers.are_off = were_off or item.get_closest_marker("cold_workers") is not None
    try:
        return (yield)
    finally:
        servers.are_off = were_off


def ran(document: Any) -> dict[str, int]:
    """Stage → the number of its steps that ran, without stages in which no step ran."""
    return {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}


def step(document: Any, identifier: str) -> Any:
    (match,) = [entry for entry in document["steps"] if entry["id"] == identifier]
    return match


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    """An empty project with its own cache."""
    (tmp_path / "project").mkdir()
    return CommandLine(tmp_path / "project", tmp_path / "cache")


@dataclass(frozen=True)
class BuiltExamples:
    """The example manifests, built. `document` is the output of ``trtbuild build --json``."""

    project: Path
    cache: Path
    document: Any

    def key(self, identifier: str) -> str:
        """The key of a step. An example of `identifier` is ``vit/engine/layers.0@ada``."""
        return str(step(self.document, identifier)["key"])

    def index(self, model: str) -> Any:
        return json.loads((self.project / "dist" / model / "index.json").read_bytes())


@pytest.fixture(scope="session")
def built_examples(tmp_path_factory: pytest.TempPathFactory) -> BuiltExamples:
    """A built copy of manifests/. If tests run in several processes, the first one builds for all.

    If ``$TRTBUILD_TEST_CACHE`` names a directory, it is the cache, and later runs use it again.
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
    """A real nginx with the configuration from the documentation."""
    with running(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture
def nginx(nginx_server: Nginx) -> Nginx:
    """A real nginx with an empty remote cache."""
    nginx_server.empty()
    return nginx_server
