"""The table of the kinds of remotes."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest

from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.kinds import KINDS, RemoteKind, kind_of, open_transport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.transports.transport import Transport

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.schemes[0])
def test_the_class_of_each_row_is_a_transport(kind: RemoteKind) -> None:
    module, _, name = kind.transport.partition(":")
    assert issubclass(getattr(importlib.import_module(module), name), Transport)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.schemes[0])
def test_an_extra_installs_the_package_of_its_row(kind: RemoteKind) -> None:
    if kind.package is not None:
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
