"""Findings about the configuration, about keys, and about remotes that answer, refuse or are silent."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.store.transports.nginx import Nginx
from trtbuild.cli.commands.completing import COMPLETION_VARIABLE
from trtbuild.driver.configuration import TrustSettings
from trtbuild.driver.doctor import remotes
from trtbuild.driver.doctor.finding import Finding
from trtbuild.driver.farm.performing import DIRECTORY_VARIABLE
from trtbuild.driver.project.workspace import Request
from trtbuild.store.trust.signing import Signer, TrustedKey

SECRET = "hunter2"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def findings_of(project: Path, *, offline: bool = False) -> list[Finding]:
    return list(remotes.check_configuration(project, Request(project, offline=offline)))


def finding_named(findings: list[Finding], name: str) -> Finding:
    (result,) = [each for each in findings if each.name == name]
    return result


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """The URL, with a password, of a server that answers every request with 401."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://user:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/cache"
    listener.close()


def test_without_configuration_there_is_no_problem(project: Path) -> None:
    findings = findings_of(project)
    assert [each.status for each in findings] == ["ok", "ok"]
    assert "does not exist" in finding_named(findings, "configuration").text
    assert "no remotes are configured" in finding_named(findings, "remotes").text


def test_every_problem_of_the_configuration_is_reported_with_its_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[cache]\nmax_size = 'x'\nsize = 1\n")
    path.chmod(0o600)
    monkeypatch.setenv("TRTBUILD_CONFIG", str(path))
    findings = findings_of(project)
    assert [each.status for each in findings] == ["problem", "problem"]
    assert {each.text.partition(": ")[0] for each in findings} == {f"{path}:2", f"{path}:3"}


def test_a_directory_that_can_be_used_is_ok(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:file://{tmp_path}/shared")
    finding = finding_named(findings_of(project), "remote team")
    assert finding.status == "ok", finding
    assert "(read and write) answers in" in finding.text
    assert "trtbuild cache push --remote team" in str(finding.fix)
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


def test_the_finding_about_a_server_names_the_source_of_the_credentials(
    project: Path, nginx: Nginx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=r:{nginx.url}")
    password = nginx.passwords["reader"]
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_USER", "reader")
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_PASSWORD", password)
    finding = finding_named(findings_of(project), "remote team")
    assert finding.status == "ok", finding
    assert "(read) answers in" in finding.text
    assert "with credentials from TRTBUILD_REMOTE_TEAM_USER" in finding.text
    assert password not in repr(finding)


def test_a_refusal_is_a_problem_with_a_fix_and_without_the_password(
    project: Path, refusing_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=r:{refusing_url}")
    finding = finding_named(findings_of(project), "remote team")
    assert finding.status == "problem"
    assert "401" in finding.text
    assert finding.fix
    assert SECRET not in repr(finding)


def test_a_remote_that_is_down_is_a_warning_and_the_others_are_checked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # the end of the block closes this port
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("TRTBUILD_REMOTES", f"dead=rw:http://127.0.0.1:{port}/x team=r:file://{tmp_path}/shared")
    findings = findings_of(project)
    assert finding_named(findings, "remote dead").status == "warning"
    assert f":{port}/x: " in finding_named(findings, "remote dead").text
    assert finding_named(findings, "remote team").status == "ok"
    assert "not checked (--offline): dead, team" in finding_named(findings_of(project, offline=True), "remotes").text


def test_a_misspelt_variable_is_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", "team=r:file:///nonexistent/x")
    monkeypatch.setenv("TRTBUILD_REVOKED_KEY", SECRET)
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_TOKEN", SECRET)
    monkeypatch.setenv("TRTBUILD_REMOTE_OTHER_TOKEN", SECRET)
    misspelt = [each for each in findings_of(project) if "no such variable" in each.text]
    assert [each.text.split()[0] for each in misspelt] == ["TRTBUILD_REMOTE_OTHER_TOKEN", "TRTBUILD_REVOKED_KEY"]
    assert "TRTBUILD_REVOKED_KEYS" in str(misspelt[1].fix)
    assert SECRET not in repr(misspelt)


def test_variables_of_trtbuild_itself_are_not_reported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(project))
    monkeypatch.setenv(COMPLETION_VARIABLE, "bash_complete")
    monkeypatch.setenv("TRTBUILD_COMPLETE", "bash_complete")  # the name without its underscore has no effect
    assert [each.text.split()[0] for each in findings_of(project) if "no such variable" in each.text] == [
        "TRTBUILD_COMPLETE"
    ]


def key(name: str, expires: datetime.date | None = None) -> TrustedKey:
    return TrustedKey(name, Signer.new(name).public_key, expires)


def test_keys_that_expire_and_revoked_keys_are_warnings() -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    day = datetime.timedelta(days=1)
    revoked = key("stolen")
    keys = (
        key("old", today - day),
        key("soon", today + 30 * day),
        key("last", today),
        key("later", today + 31 * day),
        key("always"),
        revoked,
    )
    findings = list(remotes._check_trust(TrustSettings(keys, revoked=frozenset({revoked.public_key})), today))
    assert findings[0].status == "ok"
    assert findings[0].text.startswith("6 trusted keys; reads ")
    assert [each.text.partition(", ")[0].partition(": ")[0] for each in findings[1:]] == [
        f"key 'old' expired on {today - day}",
        f"key 'soon' expires on {today + 30 * day}",
        f"key 'last' expires on {today}",
        "key 'stolen' is both trusted and revoked",
    ]
    assert all(each.status == "warning" and each.fix for each in findings[1:])


def test_a_signing_key_that_cannot_be_used_is_a_problem(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ci.key"
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY_FILE", str(path))
    assert finding_named(findings_of(project), "trust").status == "problem"
    path.write_text(Signer.new("ci").text())
    path.chmod(0o644)
    finding = finding_named(findings_of(project), "trust")
    assert finding.status == "problem"
    assert "chmod 600" in finding.fix
    path.chmod(0o600)
    finding = finding_named(findings_of(project), "trust")
    assert finding.status == "ok"
    assert finding.text == "0 trusted keys; reads ci; signs for ci"


def test_a_clock_that_is_behind_is_a_warning_if_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrustSettings((key("ci", datetime.date(2999, 1, 1)),))
    today = datetime.date(2026, 1, 1)
    assert not [each for each in remotes._check_trust(settings, today) if "clock" in each.text]
    monkeypatch.setattr(remotes.time, "time", lambda: 0.0)
    (warning,) = [each for each in remotes._check_trust(settings, today) if "clock" in each.text]
    assert warning.status == "warning"


def test_the_doctor_command_checks_remotes(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    environment = {"TRTBUILD_REMOTES": f"team=r:file://{tmp_path}/shared"}
    (command_line.project / "trtbuild.yaml").write_text("version: 2\n")  # a problem, so that doctor exits with 1
    document = command_line("doctor", environment=environment, expect=1)
    assert "remote team" in [check["name"] for check in document["checks"]]
    document = command_line("doctor", "--offline", environment=environment, expect=1)
    assert "remote team" not in [check["name"] for check in document["checks"]]


def test_the_warning_about_a_missing_directory_says_that_it_may_not_be_mounted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.parent / "a share"
    monkeypatch.setenv("TRTBUILD_CONFIG", "/dev/null")
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{folder.as_uri()}")
    finding = finding_named(findings_of(project), "remote team")
    assert finding.status == "warning" and "no such directory" in finding.text and "mounted" in (finding.fix or "")
    folder.mkdir()
    assert finding_named(findings_of(project), "remote team").status == "ok"
