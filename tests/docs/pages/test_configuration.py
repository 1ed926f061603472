"""docs/configuration.md names every entry and every environment variable, and its examples are valid."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trtbuild.driver import configuration
from trtbuild.driver.configuration.file import ConfigFile
from trtbuild.driver.configuration.sources import FIELDS
from trtbuild.store.transports.settings import RemoteSettings

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text("utf-8")
(TOML,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(SHELL,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(
    r"^\| (?:`([a-z_.<>]+)`)? ?\| (?:in )?`(TRTBUILD_[A-Z_<>]+)` \| *(.*?) *\| (.*?) \|$", PAGE, re.MULTILINE
)


def test_the_table_has_every_entry_and_every_variable() -> None:
    assert {entry for entry, *_ in ROWS if entry} == {
        f"{table}.{key}" for table, keys in FIELDS.items() for key in keys
    }
    variables_of_one_remote = {"TRTBUILD_REMOTE_<NAME>_PATIENCE_S", "TRTBUILD_REMOTE_<NAME>_CONNECTIONS"}
    assert {variable for _, variable, *_ in ROWS} == set(configuration.VARIABLES) | variables_of_one_remote
    assert all(f"`TRTBUILD_REMOTE_<NAME>_{suffix}`" in PAGE for suffix in ("TOKEN", "USER", "PASSWORD"))


def test_the_example_has_every_entry_and_is_read(tmp_path: Path) -> None:
    values = ConfigFile("docs", TOML.encode()).values
    assert set(values) == set(FIELDS)
    for table, keys in FIELDS.items():
        tables = values[table] if isinstance(values[table], list) else [values[table]]
        assert {re.sub(r"^sm_\d+$", "sm_<number>", key) for key in set().union(*tables)} == set(keys)
    path = tmp_path / "config.toml"
    path.write_text(TOML)
    path.chmod(0o600)
    loaded = configuration.load({"TRTBUILD_CONFIG": str(path), "HOME": "/home/me"}, tmp_path)
    assert loaded.cache_max_size == 50 << 30
    assert [remote.name for remote in loaded.remotes] == ["team", "archive"]
    assert [key.name for key in loaded.trust.keys] == ["release", "ci"]
    assert len(loaded.trust.revoked) == 1
    assert loaded.runners == {89: ("self-hosted", "l4"), 90: ("h100",)}


def test_the_example_variables_have_the_values_of_the_example_file(tmp_path: Path) -> None:
    environ = dict(re.findall(r'export ([A-Z_]+)="?(.*?)"?$', SHELL, re.MULTILINE))
    assert len(environ) == SHELL.count("export")
    path = tmp_path / "config.toml"
    path.write_text(TOML)
    path.chmod(0o600)
    by_variables = configuration.load({**environ, "TRTBUILD_CONFIG": "/dev/null"}, tmp_path)
    by_file = configuration.load({"TRTBUILD_CONFIG": str(path)}, tmp_path)
    assert [remote.url for remote in by_variables.remotes] == [remote.url for remote in by_file.remotes]
    assert by_variables.remotes[1].patience_s == by_file.remotes[1].patience_s
    assert by_variables.trust.keys[0] == by_file.trust.keys[1]
    assert by_variables.trust.read_domains == by_file.trust.read_domains
    assert by_variables.runners == by_file.runners


@pytest.mark.parametrize("name", ["patience_s", "connections"])
def test_the_page_has_the_defaults_of_the_code(name: str) -> None:
    (default,) = [setting.default for setting in fields(RemoteSettings) if setting.name == name]
    (on_page,) = [default for entry, _, default, _ in ROWS if entry == f"remote.{name}"]
    assert float(on_page) == default
