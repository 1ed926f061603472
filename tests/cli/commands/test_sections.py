"""The output of `--help` and `--version`, and the error about a missing command."""

from __future__ import annotations

import json
from importlib import metadata

from tests.conftest import CommandLine
from trtbuild.cli.commands.sections import SECTIONS
from trtbuild.cli.main import cli


def test_every_command_is_in_one_section_of_the_help(command_line: CommandLine) -> None:
    result = command_line.run("--help")
    assert result.returncode == 0
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(name for name in listed if name in cli.commands) == sorted(cli.commands)
    for title in SECTIONS:
        assert f"\n{title}:\n" in result.stdout
    assert "Other:" not in result.stdout
    for line in result.stdout.partition("Begin:")[2].partition("Examples:")[0].splitlines():
        assert not line.endswith("..."), f"the description is cut off: {line}"


def test_examples_are_below_the_help(command_line: CommandLine) -> None:
    assert "trtbuild init && trtbuild build" in command_line.run("--help").stdout
    assert "--depfile-target" in command_line.run("build", "--help").stdout.partition("Examples:")[2]


def test_the_help_of_a_command_shows_only_its_flags(command_line: CommandLine) -> None:
    assert all(flag in command_line.run("build", "--help").stdout for flag in ("--frozen", "--trace", "-j", "-C"))
    help_text = command_line.run("status", "--help").stdout
    assert "--target" in help_text and "--frozen" not in help_text and "--depfile" not in help_text
    help_text = command_line.run("watch", "--help").stdout
    assert "--until" in help_text  # watch passes it to the builds
    assert "--json" not in help_text  # watch refuses it
    help_text = command_line.run("cache", "--help").stdout
    assert "--target" not in help_text
    assert "..." not in help_text.partition("Commands:")[2], help_text
    assert "stats" in help_text.partition("Commands:")[2], help_text


def test_the_version_and_with_json_the_versions_of_the_libraries(command_line: CommandLine) -> None:
    result = command_line.run("--version")
    assert result.returncode == 0
    assert result.stdout == f"trtbuild, version {metadata.version('trtbuild')}\n"
    for arguments in (["--version", "--json"], ["--json", "--version"]):
        document = json.loads(command_line.run(*arguments).stdout)
        assert document["schema"] == "trtbuild.version/1"
        assert document["trtbuild"] == metadata.version("trtbuild")
        assert document["parts"]["tensorrt-rtx"] == metadata.version("tensorrt-rtx")
        assert "torch" in document["parts"]


def test_a_missing_command_is_a_usage_error(command_line: CommandLine) -> None:
    assert command_line.run().returncode == 2
    result = command_line.run("--quiet")
    assert result.returncode == 2
    assert "missing command" in result.stderr.lower()
