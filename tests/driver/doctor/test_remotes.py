"""The findings of doctor about the configuration, about remotes that answer, refuse or are dead, and about keys."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from tests.store.transports.nginx import Nginx
from trtbuild.driver.configuration import TrustSettings
from trtbuild.driver.doctor import remotes
from trtbuild.driver.doctor.finding import Finding
from trtbuild.driver.project.workspace import Request
from trtbuild.store.trust.signing import Signer, TrustedKey

SECRET = "hunter2"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def examined(project: Path, *, offline: bool = False) -> list[Finding]:
    return list(remotes.configured(project, Request(project, offline=offline)))


def finding(found: list[Finding], name: str) -> Finding:
    (one,) = [each for each in found if each.name == name]
    return one


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that answers 401 to everything; the URL has a password."""
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


def test_nothing_configured_is_no_fault(project: Path) -> None:
    found = examined(project)
    assert [each.status for each in found] == ["ok", "ok"]
    assert "is not there" in finding(found, "configuration").text
    assert "no remotes are configured" in finding(found, "remotes").text


def test_every_problem_of_the_configuration_is_told_with_its_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[cache]\nmax_size = 'x'\nsize = 1\n")
    path.chmod(0o600)
    monkeypatch.setenv("TRTBUILD_CONFIG", str(path))
    found = examined(project)
    assert [each.status for each in found] == ["problem", "problem"]
    assert {each.text.partition(": ")[0] for each in found} == {f"{path}:2", f"{path}:3"}


def test_a_directory_that_answers(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:file://{tmp_path}/shared")
    found = finding(examined(project), "remote team")
    assert found.status == "ok", found
    assert "(read and write) answers in" in found.text
    assert "trtbuild cache push --remote team" in str(found.fix)
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


def test_a_server_that_answers_and_who_is_asked_for(
    project: Path, nginx: Nginx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=r:{nginx.url}")
    password = nginx.passwords["reader"]
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_USER", "reader")
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_PASSWORD", password)
    found = finding(examined(project), "remote team")
    assert found.status == "ok", found
    assert "(read) answers in" in found.text
    assert "with credentials from TRTBUILD_REMOTE_TEAM_USER" in found.text
    assert password not in repr(found)


def test_a_refusal_says_how_to_log_in(project: Path, refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=r:{refusing}")
    found = finding(examined(project), "remote team")
    assert found.status == "problem"
    assert "401" in found.text
    assert found.fix
    assert SECRET not in repr(found)


def test_a_remote_that_is_down_is_a_warning_and_no_other_is_kept_from_answering(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("TRTBUILD_REMOTES", f"dead=rw:http://127.0.0.1:{port}/x team=r:file://{tmp_path}/shared")
    found = examined(project)
    assert finding(found, "remote dead").status == "warning"
    assert f":{port}/x: " in finding(found, "remote dead").text
    assert finding(found, "remote team").status == "ok"
    assert "not checked (--offline): dead, team" in finding(examined(project, offline=True), "remotes").text


def test_a_misspelt_variable_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_REMOTES", "team=r:file:///nonexistent/x")
    monkeypatch.setenv("TRTBUILD_REVOKED_KEY", SECRET)
    monkeypatch.setenv("TRTBUILD_REMOTE_TEAM_TOKEN", SECRET)
    monkeypatch.setenv("TRTBUILD_REMOTE_OTHER_TOKEN", SECRET)
    told = [each for each in examined(project) if "no such variable" in each.text]
    assert [each.text.split()[0] for each in told] == ["TRTBUILD_REMOTE_OTHER_TOKEN", "TRTBUILD_REVOKED_KEY"]
    assert "TRTBUILD_REVOKED_KEYS" in str(told[1].fix)
    assert SECRET not in repr(told)


def key(name: str, expires: datetime.date | None = None) -> TrustedKey:
    return TrustedKey(name, Signer.new(name).public_key, expires)


def test_keys_that_end_and_keys_that_are_revoked_are_told() -> None:
    today = datetime.datetime.now(datetime.timezone.utc).date()
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
    found = list(remotes._trust(TrustSettings(keys, revoked=frozenset({revoked.public_key})), today))
    assert found[0].status == "ok"
    assert found[0].text.startswith("6 trusted keys; reads ")
    assert [each.text.partition(", ")[0].partition(": ")[0] for each in found[1:]] == [
        f"key 'old' expired on {today - day}",
        f"key 'soon' expires on {today + 30 * day}",
        f"key 'last' expires on {today}",
        "key 'stolen' is both trusted and revoked",
    ]
    assert all(each.status == "warning" and each.fix for each in found[1:])


def test_a_signing_key_that_cannot_be_used_is_a_problem(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ci.key"
    monkeypatch.setenv("TRTBUILD_SIGNING_KEY_FILE", str(path))
    assert finding(examined(project), "trust").status == "problem"
    path.write_text(Signer.new("ci").text())
    path.chmod(0o644)
    found = finding(examined(project), "trust")
    assert found.status == "problem"
    assert "chmod 600" in found.fix
    path.chmod(0o600)
    found = finding(examined(project), "trust")
    assert found.status == "ok"
    assert found.text == "0 trusted keys; reads ci; signs for ci"


def test_a_clock_that_is_behind_is_told_where_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrustSettings((key("ci", datetime.date(2999, 1, 1)),))
    today = datetime.date(2026, 1, 1)
    assert not [each for each in remotes._trust(settings, today) if "clock" in each.text]
    monkeypatch.setattr(remotes.time, "time", lambda: 0.0)
    (told,) = [each for each in remotes._trust(settings, today) if "clock" in each.text]
    assert told.status == "warning"


def test_it_is_part_of_the_command(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    environment = {"TRTBUILD_REMOTES": f"team=r:file://{tmp_path}/shared"}
    (command_line.project / "trtbuild.yaml").write_text("version: 2\n")  # a problem, which ends it with status 1
    document = command_line("doctor", environment=environment, expect=1)
    assert "remote team" in [check["name"] for check in document["checks"]]
    document = command_line("doctor", "--offline", environment=environment, expect=1)
    assert "remote team" not in [check["name"] for check in document["checks"]]


def test_a_directory_that_is_not_there_is_perhaps_not_mounted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = project.parent / "a share"
    monkeypatch.setenv("TRTBUILD_CONFIG", "/dev/null")
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:{place.as_uri()}")
    found = finding(examined(project), "remote team")
    assert found.status == "warning" and "no such directory" in found.text and "mounted" in (found.fix or "")
    place.mkdir()
    assert finding(examined(project), "remote team").status == "ok"
