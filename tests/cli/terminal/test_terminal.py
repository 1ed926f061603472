"""Colour, a live area (rows that are rewritten in place) and Unicode on different streams, and output that cannot be
written."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import click
import pytest

from tests.conftest import CommandLine
from tests.projects import copy_project
from tests.warm.servers import servers
from trtbuild.cli.main import cli, run
from trtbuild.cli.terminal import terminal


class FakeStream(io.TextIOWrapper):
    """A stream whose `isatty` returns `is_terminal`."""

    def __init__(self, *, is_terminal: bool = True, encoding: str = "utf-8", errors: str = "strict") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors=errors, write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_a_fake_stream_has_its_arguments() -> None:
    assert FakeStream().isatty()
    assert not FakeStream(is_terminal=False).isatty()
    assert FakeStream(encoding="ascii").encoding == "ascii"


@pytest.mark.parametrize(
    ("is_terminal", "environment", "colour"),
    [
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "0"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "0"}, False),
        (True, {"CLICOLOR": "0"}, False),
        (True, {"CLICOLOR": "1"}, True),
        (False, {"CLICOLOR": "1"}, False),
        (True, {"CLICOLOR": "0", "CLICOLOR_FORCE": "1"}, True),
        (False, {"TERM": "dumb", "FORCE_COLOR": "3"}, True),
    ],
)
def test_colour_follows_the_conventions_for_environment_variables(
    is_terminal: bool, environment: dict[str, str], colour: bool
) -> None:
    assert terminal.shows_colour(FakeStream(is_terminal=is_terminal), environment) is colour


@pytest.mark.parametrize(
    ("is_terminal", "environment", "live"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (False, {"TERM": "xterm"}, False),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (True, {"TERM": "xterm", "CI": "true"}, False),
        (True, {"TERM": "xterm", "CI": "false"}, True),
        (True, {"TERM": "xterm", "CI": ""}, True),
    ],
)
def test_a_live_area_needs_a_terminal_and_is_not_used_in_ci(
    is_terminal: bool, environment: dict[str, str], live: bool
) -> None:
    assert terminal.can_be_live(FakeStream(is_terminal=is_terminal), environment) is live


def test_text_for_a_stream_without_unicode_has_similar_ascii_characters() -> None:
    text = "3 → 5 … × 2 Größe"
    assert terminal.render(text, FakeStream()) == text
    assert terminal.render(text, FakeStream(encoding="ascii")) == "3 -> 5 ... x 2 Gr??e"
    assert terminal.render("Größe", FakeStream(encoding="latin-1")) == "Größe"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_results_and_messages_have_only_characters_of_the_stream(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    for name, write in (("stdout", terminal.write_result), ("stderr", terminal.write_message)):
        stream = FakeStream(is_terminal=False, encoding=encoding)
        monkeypatch.setattr(sys, name, stream)
        write("3 → 5 … × 2 Київ")
        assert stream.buffer.getvalue().rstrip() == b"3 -> 5 ... x 2 ????"


def paths_of_commands(command: click.Command) -> list[list[str]]:
    """The words of `command` and of all its subcommands, without the program's name."""
    subcommands = command.commands.items() if isinstance(command, click.Group) else ()
    return [[], *([name, *path] for name, subcommand in subcommands for path in paths_of_commands(subcommand))]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_help_of_every_command_can_be_written_without_unicode(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    texts = {}
    for path in paths_of_commands(cli):
        stream = FakeStream(is_terminal=False, encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert run([*path, "--help"]) == 0, path
        texts[" ".join(path)] = stream.buffer.getvalue().decode("ascii")
    assert "cuda, cuda:1, ..., or cpu" in texts["run"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_file_name_that_is_not_utf_8_can_be_written(errors: str) -> None:
    stream = FakeStream(errors=errors)
    stream.write(terminal.render("→ " + os.fsdecode(b"m\xff.onnx"), stream))
    assert stream.buffer.getvalue() == "→ ".encode() + {"strict": b"m?.onnx", "surrogateescape": b"m\xff.onnx"}[errors]


def test_colour_is_removed_from_plain_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.render(terminal.red("no"), FakeStream(is_terminal=False)) == "no"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.render(terminal.red("no"), FakeStream(is_terminal=False)) == terminal.red("no") != "no"


def run_in_shell(command_line: CommandLine, words: str) -> tuple[int, str]:
    """Run ``trtbuild WORDS`` in a shell, with redirections in WORDS. Return the exit status and standard error."""
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"{sys.executable}" -m trtbuild {words}'],
        cwd=command_line.project,
        env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    return result.returncode, result.stderr


@pytest.mark.parametrize(
    "words", ["cache stats", "cache stats --json", "schema", "completion bash", "--help", "plan -h"]
)
def test_a_full_disk_under_standard_output_is_an_error(command_line: CommandLine, words: str) -> None:
    assert run_in_shell(command_line, f"{words} >/dev/full") == (
        1,
        "error: standard output cannot be written: No space left on device\n"
        "  → the results are in the cache: run the command again\n",
    )


def test_a_closed_standard_output_is_an_error_before_any_work(command_line: CommandLine) -> None:
    error = "error: standard output is closed\n  → redirect it (>/dev/null), or use --quiet\n"
    for words in ("cache stats", "cache stats --json", "cache stats --quiet --json", "schema", "build", "--help"):
        assert run_in_shell(command_line, f"{words} >&-") == (2, error), words
    assert not command_line.cache.exists()
    for flag in ("-q", "--quiet"):
        assert run_in_shell(command_line, f"cache stats {flag} >&-") == (0, "")


def run_without_reader(command_line: CommandLine, *words: str, stderr_too: bool = False) -> tuple[int, str]:
    """Run a command whose standard output has no reader. Return the exit status and the text of standard error.

    With `stderr_too`, standard error has no reader, either.
    """
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, *servers.python_arguments("trtbuild.__main__", os.environ), *words],
            cwd=command_line.project,
            env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
            stdout=writing,
            stderr=writing if stderr_too else subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(writing)
    return result.returncode, result.stderr or ""


@pytest.mark.parametrize(
    "words", ["cache stats", "cache stats --json", "schema", "completion bash", "--help", "plan -h"]
)
def test_a_reader_that_stops_early_is_not_an_error(command_line: CommandLine, words: str) -> None:
    assert run_without_reader(command_line, *words.split()) == (0, "")
    assert run_in_shell(command_line, f"{words} | head -c 1") == (0, "")


@pytest.mark.parametrize("stderr_too", [False, True])
def test_a_build_without_a_reader_continues_and_exits_with_its_own_status(
    command_line: CommandLine, stderr_too: bool
) -> None:
    copy_project("mlp", command_line.project)
    net = command_line.project / "net.py"
    working_code = net.read_text()
    net.write_text("def build():\n    raise RuntimeError('no weights')\n")
    status, error = run_without_reader(command_line, "build", stderr_too=stderr_too)
    assert (status, "no weights" in error) == (1, not stderr_too)
    assert run_without_reader(command_line, "build", "--json", "nothing", stderr_too=stderr_too)[0] == 2
    net.write_text(working_code)
    status, error = run_without_reader(command_line, "build", stderr_too=stderr_too)
    assert (status, "Traceback" in error) == (0, False)
    assert (command_line.project / "dist" / "net" / "index.json").exists()
