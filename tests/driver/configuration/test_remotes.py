"""Names, URLs and numeric fields of remotes, and URLs that are shown without credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.driver import configuration
from trtbuild.driver.configuration.remotes import without_credentials
from trtbuild.errors import ConfigurationError
from trtbuild.store.transports.kinds import KINDS

SCHEMES = [scheme for kind in KINDS for scheme in kind.schemes]


def load(tmp_path: Path, text: str, **variables: str) -> configuration.Configuration:
    return configuration.load({"HOME": str(tmp_path), "TRTBUILD_REMOTES": text, **variables}, tmp_path / "project")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "https://user:pa%2Fss@cache.example/a/b",
        "http://[::1]:8080/cache",
        "HTTPS://cache.example",
        "file:///mnt/team%20cache",
        "file://localhost/mnt/cache",
        "s3://bucket",
        "s3://bucket/prefix/deep",
        "gs://bucket/p",
        "az://container/p",
    ],
)
def test_accepts_urls(tmp_path: Path, url: str) -> None:
    (remote,) = load(tmp_path, f"team=rw:{url}").remotes
    assert remote.url == url


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("http://", "has no host", "http://host/path"),
        ("https:///path", "has no host", "https://host/path"),
        ("s3:///prefix", "has no bucket", "s3://bucket/path"),
        ("ftp://host/x", "is not the URL of a remote", f"the schemes are: {', '.join(SCHEMES)}"),
        ("htps://host/x", "is not the URL of a remote", "did you mean 'https'"),
        ("/mnt/cache", "is not the URL of a remote", "file:///mnt/cache"),
        ("mnt/cache", "is not the URL of a remote", "such as"),
        ("file://mnt/cache", "not an absolute path", "three slashes"),
        ("file://./cache", "not an absolute path", "three slashes"),
        ("file://user:secret@host/cache", "'file://…@host/cache' is not an absolute path", "three slashes"),
        ("file://~/cache", "not an absolute path", "three slashes"),
        ("file:///", "root of the file system", "directory"),
        ("file:///mnt/../etc", "has .. in it", "without it"),
        ("http://host:port/x", "cannot be read", "such as"),
        ("http://host:99999/x", "cannot be read", "such as"),
        ("http://[::1/x", "cannot be read", "such as"),
        ("http://host/x?y=1", "query or fragment", "without ? and #"),
        ("http://host/x#y", "query or fragment", "without ? and #"),
        ("s3://bucket:9000/x", "more than a bucket", "AWS_ENDPOINT_URL"),
    ],
)
def test_rejects_urls(tmp_path: Path, url: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, f"team=rw:{url}")
    assert message in caught.value.text
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", ["local", "built", "1st", "a.b", "ä", "a" * 33, "a:b"])
def test_rejects_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a valid name of a remote|no remote may be called"):
        load(tmp_path, f"{name}=rw:file:///mnt/cache")


def test_rejects_two_remotes_with_one_name_or_the_same_variables(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="two remotes are called 'a'"):
        load(tmp_path, "a=r:file:///x a=w:file:///y")
    with pytest.raises(ConfigurationError, match="TRTBUILD_REMOTE_A_B_"):
        load(tmp_path, "a-b=r:file:///x A_b=w:file:///y")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRTBUILD_REMOTE_TEAM_PATIENCE_S", "0"),
        ("TRTBUILD_REMOTE_TEAM_PATIENCE_S", "-1"),
        ("TRTBUILD_REMOTE_TEAM_PATIENCE_S", "nan"),
        ("TRTBUILD_REMOTE_TEAM_PATIENCE_S", "inf"),
        ("TRTBUILD_REMOTE_TEAM_PATIENCE_S", "4s"),
        ("TRTBUILD_REMOTE_TEAM_CONNECTIONS", "0"),
        ("TRTBUILD_REMOTE_TEAM_CONNECTIONS", "1.5"),
        ("TRTBUILD_REMOTE_TEAM_CONNECTIONS", "257"),
    ],
)
def test_rejects_numbers_out_of_range(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        load(tmp_path, "team=rw:file:///mnt/cache", **{variable: value})


@pytest.mark.parametrize("line", ["patience_s = '4'", "patience_s = true", "connections = 4.0", "connections = 0"])
def test_rejects_numbers_of_a_wrong_type(tmp_path: Path, line: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[[remote]]\nname = 'team'\nurl = 'file:///mnt/cache'\n{line}\n")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="of remote 'team' is not") as caught:
        configuration.load({"TRTBUILD_CONFIG": str(path)}, tmp_path)
    assert caught.value.line == 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:pw@host/x", "https://…@host/x"),
        ("https://user:p/w@host/x", "https://…@host/x"),
        ("https://host/x?token=1", "https://host/x"),
        ("user:pw@host", "…@host"),
        ("file:///mnt/cache", "file:///mnt/cache"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, expected: str) -> None:
    assert without_credentials(url) == expected
