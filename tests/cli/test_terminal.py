"""What a stream can show: the conventions for colour, for a live area, and for streams that are not Unicode."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from tests.conftest import CommandLine
from trtbuild.cli import terminal


class FakeStream(io.TextIOWrapper):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, is_terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_a_fake_stream_is_what_it_is_made_as() -> None:
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
def test_colour_goes_by_the_conventions(is_terminal: bool, environment: dict[str, str], colour: bool) -> None:
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
def test_a_live_area_needs_a_terminal_and_nobody_who_keeps_a_log(
    is_terminal: bool, environment: dict[str, str], live: bool
) -> None:
    assert terminal.can_be_live(FakeStream(is_terminal=is_terminal), environment) is live


def test_a_stream_that_is_not_unicode_gets_the_nearest_ascii() -> None:
    text = "3 → 5 … × 2 Größe"
    assert terminal.rendered(text, FakeStream()) == text
    assert terminal.rendered(text, FakeStream(encoding="ascii")) == "3 -> 5 ... x 2 Gr??e"
    assert terminal.rendered("Größe", FakeStream(encoding="latin-1")) == "Größe"


def test_colour_is_taken_out_where_it_does_not_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.rendered(terminal.red("no"), FakeStream(is_terminal=False)) == "no"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal.rendered(terminal.red("no"), FakeStream(is_terminal=False)) == terminal.red("no") != "no"


def test_a_standard_output_that_cannot_be_written_is_an_error_and_one_that_is_closed_is_none(
    command_line: CommandLine,
) -> None:
    def shell(redirection: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", f'"{sys.executable}" -m trtbuild cache stats {redirection}'],
            cwd=command_line.project,
            env={**os.environ, "TRTBUILD_CACHE_DIR": str(command_line.cache)},
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    message = "error: standard output cannot be written: No space left on device\n"
    hint = "  → what was built is in the cache: run this again\n"
    assert shell(">/dev/full") == (1, message + hint)
    assert shell("--json >/dev/full") == (1, message + hint)
    assert shell(">&-") == (0, "")
    assert shell("| true")[1] == ""
