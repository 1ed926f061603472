"""A long result is shown in a pager if standard output is a terminal, and printed otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.pty_screen import Screen

#: A program that shows N lines. Its arguments are N and the names of flags.
PROGRAM = """\
import sys
from trtbuild.cli.commands import show
count, *flags = sys.argv[1:]
show.paged(dict.fromkeys(flags, True), int(count), lambda count: [f"line {n}" for n in range(count)])
"""

#: A pager that prints its first argument, the environment variable LESS and the last line of its input.
PAGER = """\
#!/bin/sh
echo "pager $1 LESS=$LESS"
exec tail -n 1
"""


@pytest.fixture
def pager(tmp_path: Path) -> str:
    path = tmp_path / "pager"
    path.write_text(PAGER)
    path.chmod(0o755)
    return str(path)


def shown(folder: Path, count: int, *flags: str, **environment: str) -> str:
    """The text that PROGRAM or its pager writes on a terminal of ten rows."""
    return run_on_terminal([sys.executable, "-c", PROGRAM, str(count), *flags], folder, environment)


def run_on_terminal(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    screen = Screen(columns=40, rows=10)
    variables = {name: value for name, value in os.environ.items() if name not in ("LESS", "LINES", "COLUMNS")}
    assert screen.run(command, folder, variables | {"TERM": "xterm"} | dict(environment)) == 0
    return screen.written.decode().replace("\r\n", "\n")


def test_a_long_result_is_paged(tmp_path: Path, pager: str) -> None:
    assert shown(tmp_path, 30, PAGER=f"{pager} -x") == "pager -x LESS=FRX\nline 29\n"


def test_a_result_with_few_long_lines_is_paged(tmp_path: Path, pager: str) -> None:
    """Three of these lines take twelve rows of a terminal with ten rows."""
    program = PROGRAM.replace('f"line {n}"', 'f"\\x1b[1mline {n}\\x1b[0m " + 150 * "x"')
    assert run_on_terminal([sys.executable, "-c", program, "3"], tmp_path, {"PAGER": pager}).startswith("pager ")


@pytest.mark.parametrize(("character", "is_paged"), [("模", True), ("e\u0301", False)])
def test_the_cells_of_a_line_count_and_not_its_characters(
    tmp_path: Path, pager: str, character: str, is_paged: bool
) -> None:
    """35 wide characters take two rows of 40 cells, 35 letters with an accent take one row."""
    program = PROGRAM.replace('f"line {n}"', f"35 * {character!r}")
    text = run_on_terminal([sys.executable, "-c", program, "7"], tmp_path, {"PAGER": pager})
    assert text.startswith("pager ") is is_paged


def test_the_variable_less_is_kept(tmp_path: Path, pager: str) -> None:
    assert shown(tmp_path, 30, PAGER=pager, LESS="R").startswith("pager  LESS=R\n")


def test_a_short_result_is_printed(tmp_path: Path, pager: str) -> None:
    assert shown(tmp_path, 3, PAGER=pager) == "line 0\nline 1\nline 2\n"


@pytest.mark.parametrize("value", ["", "cat", "no-such-program", "'open"])
def test_without_a_usable_pager_the_result_is_printed(tmp_path: Path, value: str) -> None:
    assert shown(tmp_path, 30, PAGER=value).count("line") == 30


@pytest.mark.parametrize("flag", ["no_pager", "quiet"])
def test_no_pager_prints_the_result_and_quiet_prints_nothing(tmp_path: Path, pager: str, flag: str) -> None:
    assert shown(tmp_path, 30, flag, PAGER=pager).count("line") == (30 if flag == "no_pager" else 0)


def test_a_pager_that_ends_early_is_not_an_error(tmp_path: Path) -> None:
    assert shown(tmp_path, 100_000, PAGER="true") == ""


def test_a_pipe_is_not_paged(tmp_path: Path, pager: str) -> None:
    command = [sys.executable, "-c", PROGRAM, "30"]
    completed = subprocess.run(
        command, env={**os.environ, "PAGER": pager}, capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stdout.count("line") == 30
