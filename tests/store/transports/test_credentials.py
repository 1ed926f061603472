"""The order of the sources of credentials. Errors and reprs contain no secret."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.credentials import Credentials, environment_name, find_credentials, public_place

URL = "https://cache.example/team"


def basic(text: str) -> str:
    return "Basic " + b64encode(text.encode()).decode()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".netrc").write_text(
        "machine other.example login o password p\n"
        "machine cache.example login net password from-netrc\n"
        "default login any password body\n"
    )
    return tmp_path


def test_the_order_of_the_sources_of_credentials(home: Path) -> None:
    environment = {"HOME": str(home)}
    found = find_credentials("team", URL, environment)
    assert found == Credentials(basic("net:from-netrc"), str(home / ".netrc"))
    environment |= {"TRTBUILD_REMOTE_TEAM_USER": "me", "TRTBUILD_REMOTE_TEAM_PASSWORD": "pass:word"}
    assert find_credentials("team", URL, environment) == Credentials(basic("me:pass:word"), "TRTBUILD_REMOTE_TEAM_USER")
    environment |= {"TRTBUILD_REMOTE_TEAM_TOKEN": " abc.def-123 \n"}
    assert find_credentials("team", URL, environment) == Credentials("Bearer abc.def-123", "TRTBUILD_REMOTE_TEAM_TOKEN")
    url = "https://u%40home:p%3A%20%C3%A4@cache.example/team"
    assert find_credentials("team", url, environment) == Credentials(basic("u@home:p: ä"), "the URL")


def test_does_not_use_the_credentials_of_another_remote() -> None:
    environment = {"HOME": "/nonexistent", "TRTBUILD_REMOTE_OTHER_TOKEN": "abc"}
    assert find_credentials("team", URL, environment) is None


def test_uses_netrc_only_for_the_exact_host(home: Path) -> None:
    environment = {"HOME": str(home)}
    assert find_credentials("team", "https://example/team", environment) is None
    assert find_credentials("team", "https://evil.cache.example/", environment) is None
    assert find_credentials("team", "https://cache.example.evil/", environment) is None
    assert find_credentials("team", "https://default/team", environment) is None
    (home / "elsewhere").write_text("machine cache.example login else password where")
    found = find_credentials("team", URL, environment | {"NETRC": str(home / "elsewhere")})
    assert found is not None
    assert found.header == basic("else:where")
    assert find_credentials("team", URL, environment | {"NETRC": str(home / "missing")}) is None


def test_an_invalid_netrc_is_an_error_without_its_contents(home: Path) -> None:
    (home / ".netrc").write_text("machine cache.example login net password\n  pass word hunter2\n")
    with pytest.raises(ConfigurationError) as caught:
        find_credentials("team", URL, {"HOME": str(home)})
    assert caught.value.file == str(home / ".netrc")
    assert caught.value.line is not None
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None
    (home / ".netrc").write_bytes(b"machine \xff")
    with pytest.raises(ConfigurationError):
        find_credentials("team", URL, {"HOME": str(home)})
    with pytest.raises(ConfigurationError, match="netrc cannot be read: File name too long"):
        find_credentials("team", URL, {"NETRC": str(home / ("n" * 300))})


@pytest.mark.parametrize("token", ["a b", "a\r\nX: y", "tökén", "a\0b"])
def test_rejects_a_token_that_would_break_the_header(token: str) -> None:
    with pytest.raises(ConfigurationError, match="TRTBUILD_REMOTE_TEAM_TOKEN") as caught:
        find_credentials("team", URL, {"HOME": "/nonexistent", "TRTBUILD_REMOTE_TEAM_TOKEN": token})
    assert token not in str(caught.value)


@pytest.mark.parametrize(("set_variable", "missing"), [("USER", "PASSWORD"), ("PASSWORD", "USER")])
def test_rejects_a_user_or_password_alone(set_variable: str, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"TRTBUILD_REMOTE_TEAM_{missing} is not set"):
        find_credentials("team", URL, {"HOME": "/nonexistent", f"TRTBUILD_REMOTE_TEAM_{set_variable}": "hunter2"})


def test_a_line_feed_in_a_login_does_not_break_the_header() -> None:
    found = find_credentials("team", "https://a%0d%0aX:b@cache.example", {"HOME": "/nonexistent"})
    assert found is not None
    assert "\n" not in found.header


def test_repr_contains_no_secret() -> None:
    found = find_credentials("team", "https://me:hunter2@cache.example", {"HOME": "/nonexistent"})
    assert found is not None
    assert "hunter2" not in repr(found)
    assert found.header not in repr(found)


def test_the_name_of_a_variable_has_only_letters_digits_and_underscores() -> None:
    assert environment_name("my-team.2", "TOKEN") == "TRTBUILD_REMOTE_MY_TEAM_2_TOKEN"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://me:hunter2@cache.example:8443/team/?sig=hunter2#hunter2", "https://cache.example:8443/team"),
        ("http://[::1]:80/", "http://[::1]:80"),
        ("https://hunter2@cache.example", "https://cache.example"),
    ],
)
def test_public_place_hides_passwords(url: str, place: str) -> None:
    assert public_place(url) == place


@pytest.mark.parametrize("url", ["https://", "https://me:hunter2@/x", "https://host:hunter2", "hunter2", "https://[x/"])
def test_an_invalid_url_is_not_in_the_error(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        public_place(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None
