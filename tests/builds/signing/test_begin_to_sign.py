"""A project whose first builds are unsigned and whose later builds are signed.

Two more tests use this project: one for a remote that is down, and one for an export without a file name.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.builds.signing.test_signed_builds import CI
from tests.conftest import CommandLine
from tests.projects import copy_project

TRUSTING = {"TRTBUILD_TRUSTED_KEYS": f"{CI.trusted};domains=ci", "TRTBUILD_READ_DOMAINS": "ci"}


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A project that was built twice without keys.

    A plan finds the record of a trace through other records, the links. Here the links are unsigned, and the project has
    a local copy of them (`trtbuild.driver.project.trail`).
    """
    base = tmp_path_factory.mktemp("unsigned")
    command = CommandLine(base / "project", base / "cache")
    copy_project("mlp", command.project)
    (base / "remote").mkdir()
    command.environment.update(
        HOME=str(base / "home"),
        XDG_STATE_HOME=str(base / "state"),
        XDG_CONFIG_HOME=str(base / "config"),
        TRTBUILD_REMOTES=f"team=rw:file://{base / 'remote'}",
    )
    command("build")
    command("build")
    return command


def test_a_colleague_who_trusts_the_key_uses_the_first_signed_build(unsigned: CommandLine, tmp_path: Path) -> None:
    signing = {"TRTBUILD_SIGNING_KEY": CI.text()}
    assert unsigned("build", environment=signing)["totals"]["trace"]["run"] == 1
    assert unsigned("cache", "push", environment=signing)["missing"] == []
    colleague = {**TRUSTING, "TRTBUILD_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert unsigned("cache", "pull", environment=colleague)["ok"]
    unsigned("build", "--frozen", environment=colleague)


def test_frozen_reports_a_remote_that_does_not_answer(unsigned: CommandLine, tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # reserves a port on which nothing listens
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        down = {"TRTBUILD_CACHE_DIR": str(tmp_path / "cache"), "TRTBUILD_REMOTES": f"team=rw:{url}"}
        document = unsigned("build", "--frozen", environment=down, expect=3)
        assert f"team: {url}: connection refused: no server listens there" in document["warnings"]
        assert "trtbuild doctor" in document["errors"][0]["hint"]
        for words in ("build --frozen", "plan", "why net", "status"):
            completed = unsigned.run(*words.split(), environment=down)
            warning = f"warning: team: {url}: connection refused: no server listens there"
            assert warning in completed.stdout + completed.stderr, words


def test_an_export_without_a_file_name_writes_no_file(unsigned: CommandLine) -> None:
    (error,) = unsigned("cache", "export", "net", expect=2)["errors"]
    assert error["hint"] == "trtbuild cache export net.bundle net"
    assert not (unsigned.project / "net").exists()
