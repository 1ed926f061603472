"""A small project that is built once, for tests of the commands that inspect and run packages."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project


@dataclass(frozen=True)
class Small:
    """The project, its cache, and the JSON document of its build."""

    project: Path
    cache: Path
    document: Any

    @property
    def command_line(self) -> CommandLine:
        return CommandLine(self.project, self.cache)

    @property
    def package(self) -> Path:
        return self.project / "dist" / "ranker"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Build the project. The first test process builds it, and the builds of the other processes have nothing to do.

    Tests must not change the files of the project.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project, cache = base / "small", base / "small-cache"
    with open(base / "small.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not project.exists():
            copy_project("ranker", project)
        document = CommandLine(project, cache)("build")
    return Small(project, cache, document)
