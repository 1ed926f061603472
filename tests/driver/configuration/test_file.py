"""The permissions, the type and the encoding of the configuration file, and the lines of its entries."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from trtbuild.driver.configuration import file as config_file
from trtbuild.driver.configuration.file import ConfigFile
from trtbuild.errors import ConfigurationError

TEXT = """\
# a comment = with an equals sign
[cache] # about the cache
  max_size = "1B"

[[remote]]
name = "a"
url = "file:///a"
[[remote]]
"name" = "b"

url = "file:///b"

[trust]
keys = [
  "one",
  "two",
]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("table", "key", "nth", "item", "line"),
    [
        ("cache", None, 0, None, 2),
        ("cache", "max_size", 0, None, 3),
        ("cache", "other", 0, None, 2),
        ("remote", "name", 0, None, 6),
        ("remote", "name", 1, None, 9),
        ("remote", "url", 1, None, 11),
        ("remote", None, 1, None, 8),
        ("trust", "keys", 0, "two", 16),
        ("trust", "keys", 0, None, 14),
        ("nothing", None, 0, None, None),
    ],
)
def test_entries_are_found_in_the_text(
    table: str, key: str | None, nth: int, item: str | None, line: int | None
) -> None:
    assert ConfigFile("f", TEXT.encode()).place(table, key, nth=nth, item=item).line == line


def test_dotted_and_inline_entries_are_found_where_they_begin() -> None:
    file = ConfigFile("f", b'x = 1\ncache.max_size = "1B"\nremote = [\n  {name = "a"},\n]\n')
    assert file.place("cache", "max_size").line == 2
    assert file.place("remote", "name", nth=0).line == 3


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o444, 0o400])
def test_accepts_a_file_that_other_users_cannot_write(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert config_file.read(str(path), must_exist=True) is not None


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o777])
def test_rejects_a_file_that_other_users_may_write(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"other users can write it .mode {mode:04o}") as caught:
        config_file.read(str(path), must_exist=True)
    assert caught.value.hint == f'chmod go-w "{path}"'


def test_a_group_may_write_the_file_only_if_the_user_is_its_only_member(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o660)
    user = pwd.getpwuid(os.geteuid()).pw_name
    gid = path.stat().st_gid
    for name, members, allowed in [(user, [], True), (user, [user], True), (user, ["eve"], False), ("team", [], False)]:
        group = grp.struct_group((name, "x", gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        if allowed:
            assert config_file.read(str(path), must_exist=True) is not None
        else:
            with pytest.raises(ConfigurationError, match="other users can write it"):
                config_file.read(str(path), must_exist=True)


def test_a_user_whose_primary_group_may_write_the_file_is_a_member(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group lists only the members for which it is a secondary group (group(5))."""
    path.chmod(0o660)
    user = pwd.getpwuid(os.geteuid())
    gid = path.stat().st_gid
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((user.pw_name, "x", gid, [])))
    eve = pwd.struct_passwd(("eve", "x", user.pw_uid + 4711, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [user, eve])
    with pytest.raises(ConfigurationError, match="other users can write it"):
        config_file.read(str(path), must_exist=True)


def test_a_file_of_another_user_is_refused_but_not_by_root(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 4711)
    if owner == 0:  # files of root are accepted for every user
        assert config_file.read(str(path), must_exist=True) is not None
        os.chown(path, 12345, -1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        config_file.read(str(path), must_exist=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert config_file.read(str(path), must_exist=True) is not None


def test_rejects_pipes_directories_and_binary_or_large_files_without_waiting(tmp_path: Path) -> None:
    pipe, folder, binary, large = (tmp_path / name for name in ("pipe", "folder", "binary", "large"))
    os.mkfifo(pipe, 0o600)
    folder.mkdir()
    binary.write_bytes(b"[cache]\nmax_size = '\xff'\n")
    large.write_bytes(b"#" * (config_file.MAX_FILE_BYTES + 1))
    irregular = "not a regular file"
    for path, message in [(pipe, irregular), (folder, irregular), (binary, "UTF-8"), (large, "more than")]:
        with pytest.raises(ConfigurationError, match=message) as caught:
            config_file.read(str(path), must_exist=False)
        assert caught.value.file == str(path)
        assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_an_error(path: Path) -> None:
    path.chmod(0o000)
    with pytest.raises(ConfigurationError, match="permission denied"):
        config_file.read(str(path), must_exist=False)


def test_a_byte_order_mark_is_ignored() -> None:
    assert ConfigFile("f", b"\xef\xbb\xbf[cache]\n").values == {"cache": {}}
