"""The table of the kinds of remotes, and the example of a new kind (`sqlite_transport`)."""

from __future__ import annotations

import importlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.store.transports import sqlite_transport
from trtbuild.errors import ConfigurationError, RemoteDown
from trtbuild.store.transports.kinds import KINDS, RemoteKind, kind_of, open_transport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import Transport

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.schemes[0])
def test_the_class_of_each_row_is_a_transport(kind: RemoteKind) -> None:
    module, _, name = kind.transport.partition(":")
    assert issubclass(getattr(importlib.import_module(module), name), Transport)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.package], ids=lambda kind: kind.schemes[0])
def test_an_extra_installs_the_package_of_its_row(kind: RemoteKind) -> None:
    assert f'\n{kind.extra} = ["{kind.package}>=' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_each_scheme_is_in_one_row_and_in_the_documentation() -> None:
    schemes = Counter(scheme for kind in KINDS for scheme in kind.schemes)
    assert set(schemes.values()) == {1}
    (line,) = (
        line for line in (ROOT / "docs" / "configuration.md").read_text("utf-8").splitlines() if "`remote.url`" in line
    )
    assert [scheme for scheme in schemes if f"`{scheme}://`" not in line] == []


@pytest.mark.parametrize("url", ["HTTPS://cache.example", "Http://cache.example:8080/x"])
def test_schemes_are_case_insensitive(url: str) -> None:
    assert "http" in kind_of(url).schemes


def test_an_unknown_scheme_is_an_error_that_lists_the_schemes() -> None:
    with pytest.raises(ConfigurationError, match="'s4' is not a scheme of a remote") as caught:
        open_transport(RemoteSettings("team", "s4://bucket"))
    known = ", ".join(scheme for kind in KINDS for scheme in kind.schemes)
    assert caught.value.hint == f"the schemes are: {known}"


@pytest.mark.parametrize("scheme", [*(scheme for kind in KINDS for scheme in kind.schemes), "sqlite"])
def test_no_transport_shows_the_password_of_a_url(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite_transport.add_row(monkeypatch)
    try:
        transport = open_transport(RemoteSettings("team", f"{scheme}://user:secret@host{tmp_path}/entries"))
    except ConfigurationError as error:
        assert "secret" not in f"{error}{error.hint}"
    else:
        assert "secret" not in f"{transport.place}{transport!r}{transport.report()}"
        transport.close()


@pytest.mark.parametrize("timed", [True, False])
def test_sqlite_gives_up_a_locked_file_after_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    sqlite_transport.add_row(monkeypatch)
    transport = open_transport(RemoteSettings("team", f"sqlite://{tmp_path}/entries", patience_s=0.1))
    other = sqlite3.connect(tmp_path / "entries", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RemoteDown, match="locked"):
        transport.get("ac", "ab" * 32, 1 << 20, timed=timed)
    other.close()
    assert transport.get("ac", "ab" * 32, 1 << 20, timed=timed) is None
    transport.close()


def test_a_timed_call_of_sqlite_gives_up_a_lock_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_transport.add_row(monkeypatch)
    transport = open_transport(RemoteSettings("team", f"sqlite://{tmp_path}/entries", patience_s=0.1))
    assert isinstance(transport, sqlite_transport.SqliteTransport)
    with transport._lock, pytest.raises(RemoteDown, match="did not arrive within"):
        transport.get("ac", "ab" * 32, 1 << 20, timed=True)
    transport.close()
