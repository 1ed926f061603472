"""A scheduler in the process of the tests. Its workers pretend to compile, and have a project directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.farm.cluster import Cluster, Driver, pretend_to_compile
from trtbuild.driver.configuration import Configuration
from trtbuild.driver.farm import performing
from trtbuild.driver.farm.connecting import connect  # noqa: F401


@pytest.fixture(scope="session")
def scheduler() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(scheduler: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The scheduler, without workers. A worker that a test adds pretends to compile."""
    real_answer = performing._answer

    def answer(text: str, name: str) -> performing.Answer:
        return scheduler.behaviours.get(name, real_answer)(text, name)

    monkeypatch.setattr(performing, "_answer", answer)
    monkeypatch.setattr(performing, "call", pretend_to_compile)
    yield scheduler
    scheduler.clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project directory of the workers. ``TRTBUILD_CACHE_DIR`` sets their cache."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRTBUILD_CONFIG", "/dev/null")
    monkeypatch.setenv(performing.DIRECTORY_VARIABLE, str(folder))
    return folder


@pytest.fixture
def driver(cluster: Cluster, project: Path) -> Driver:
    """A build on the same host as its workers."""
    return Driver(cluster.client, project, Configuration())
