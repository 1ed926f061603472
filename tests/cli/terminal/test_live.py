"""Progress on a terminal: rows that fit on the screen, and real builds on an emulated screen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.fake_steps import a_plan, a_result, a_step
from tests.cli.pty_screen import Screen
from tests.conftest import CommandLine
from tests.projects import copy_project
from tests.warm.servers import servers
from trtbuild.cli.terminal.live import LiveProgress
from trtbuild.core.planning.graph import Stage
from trtbuild.errors import TrtbuildError

STAGES: tuple[Stage, ...] = ("trace", "lower", "partition", "engine", "package")

#: The bytes that erase a row of the live area. No other output contains them.
ERASE_ROW = b"\r\x1b[2K"

#: Changes of the manifest of the project `two_models`: the source of its second model raises an error.
GOOD_AND_BROKEN = ("  first:", "  good:"), ("  second:", "  broken:"), ("nets:second", "broken:build")

BROKEN = """\
def build():
    raise ValueError("no such checkpoint")
"""


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> LiveProgress:
    """Live progress that returns the rows of its area without drawing them."""
    progress = LiveProgress()
    monkeypatch.setattr(progress, "_live", object())
    progress.build_started(4, lambda step: 4.2 if step.startswith("known") else None)
    return progress


def rows(live: LiveProgress, width: int, height: int) -> list[str]:
    return [click.unstyle(row) for row in live.area(width, height)]


@pytest.mark.parametrize("width", [5, 10, 20, 30, 40, 80, 120])
@pytest.mark.parametrize("height", [2, 4, 24])
def test_rows_fit_on_any_screen(live: LiveProgress, width: int, height: int) -> None:
    for stage in STAGES:
        live.step_started(a_step("known_and_with_a_name_that_is_longer_than_some_screens", stage))
    area = rows(live, width, height)
    assert all(len(row) < width for row in area)
    assert len(area) <= max(2, height // 2)
    all_rows = len(STAGES) + 1  # the last row has the counts
    assert len(area) == all_rows or any("more" in row or "…" in row for row in area)


def test_a_row_shows_the_duration_of_the_last_run_if_there_is_room(live: LiveProgress) -> None:
    live.step_started(a_step("known", "trace"))
    live.step_started(a_step("fresh", "trace"))
    first, second, _ = rows(live, 80, 24)
    assert re.fullmatch(r"   . +\d+\.\d s  known/trace +last time 4\.2 s", first)
    assert re.fullmatch(r"   . +\d+\.\d s  fresh/trace *", second)
    assert re.fullmatch(r"   . +\d+\.\d s  known/trace +last 4\.2 s", rows(live, 40, 24)[0])
    live.step_started(a_step("known_with_a_long_name", "trace"))
    assert re.fullmatch(r"   . +\d+\.\d s  known_w….*trace  last 4\.2 s", rows(live, 44, 24)[2])
    assert "last" not in "".join(rows(live, 36, 24))


def test_the_area_has_only_characters_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, terminal_side = os.openpty()
    stream = os.fdopen(terminal_side, "w", encoding="latin-1", errors="backslashreplace")
    monkeypatch.setattr(sys, "stderr", stream)
    progress = LiveProgress()
    progress.build_started(4, lambda step: None)
    progress.step_started(a_step("known_and_with_a_name_that_is_longer_than_some_screens" * 2, "trace"))
    progress.step_finished(a_step("vit", "trace"), a_result())
    progress.close()
    stream.flush()
    written = os.read(parent, 1 << 16).decode("ascii")
    stream.close()
    os.close(parent)
    assert "..." in written and "\\u" not in written


def test_rows_without_room_are_counted_and_a_long_name_keeps_its_ends(live: LiveProgress) -> None:
    for number in range(30):
        live.step_started(a_step(f"m{number}", "trace"))
    assert rows(live, 80, 24)[-2] == "     … and 20 more"
    assert len(rows(live, 80, 24)) == 12
    other = LiveProgress()
    other._live = live._live
    other.step_started(a_step("a_model_with_quite_a_long_name", "engine"))
    assert re.search(r" a_model….*ne$", rows(other, 32, 24)[0])


def test_steps_that_have_ended_are_not_in_the_area(live: LiveProgress, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        live, "_write_above_area", lambda word, name, about: lines.append(f"{click.unstyle(word)} {name}")
    )
    step = a_step("m", "trace")
    live.model_planned(a_plan("m", trace="run", partition="unknown"))
    live.step_started(step)
    live.step_finished(step, a_result())
    assert len(rows(live, 80, 24)) == 1
    assert lines == ["done m/trace"]


def test_a_phase_is_shown_when_it_takes_long(live: LiveProgress, monkeypatch: pytest.MonkeyPatch) -> None:
    live.phase_started("plan")
    assert len(rows(live, 80, 24)) == 1
    monkeypatch.setattr("trtbuild.cli.terminal.live.PHASE_DELAY_S", -1.0)
    assert re.fullmatch(r"   . +\d\.\d s  plan *", rows(live, 80, 24)[0])
    live.phase_finished("plan", succeeded=True)
    assert len(rows(live, 80, 24)) == 1


def test_a_verification_is_a_row_and_then_a_line(live: LiveProgress, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(live, "_write_above_area", lambda word, name: lines.append(f"{click.unstyle(word)} {name}"))
    monkeypatch.setattr("trtbuild.cli.terminal.live.PHASE_DELAY_S", -1.0)
    with live.work("verify net"):
        assert re.search(r" verify net *$", rows(live, 80, 24)[0])
    with live.work("verify angle") as work:
        work.failed = True
    assert len(rows(live, 80, 24)) == 1
    assert lines == ["done verify net", "FAIL verify angle"]


# Real builds


def environment(command_line: CommandLine, **more: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
    }
    variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "TRTBUILD_CACHE_DIR": str(command_line.cache)}
    return {**inherited, **variables, **more}


def on_a_screen(command_line: CommandLine, *arguments: str, columns: int = 80, **more: str) -> Screen:
    screen = Screen(columns=columns)
    command = [sys.executable, *servers.python_arguments("trtbuild.__main__", os.environ), *arguments]
    screen.run(command, command_line.project, environment(command_line, **more))
    return screen


@pytest.fixture(scope="module")
def first_build(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, Screen]:
    """A project, and the screen of its first build: one model is built, and the other fails."""
    base = tmp_path_factory.mktemp("live")
    command_line = CommandLine(copy_project("two_models", base / "project", *GOOD_AND_BROKEN), base / "cache")
    (command_line.project / "broken.py").write_text(BROKEN)
    return command_line, on_a_screen(command_line, "build", "--keep-going", "--trace", "t.json")


def remove_engine_record(command_line: CommandLine) -> None:
    """Remove the engine's record from the cache, so that the next build runs one step."""
    key = next(
        step["key"]
        for step in command_line("plan", "good")["steps"]
        if step["stage"] == "engine" and step["verdict"] == "hit"
    )
    (command_line.cache / "ac" / key[:2] / key).unlink()


def test_a_first_build_leaves_its_lines_and_erases_the_live_area(first_build: tuple[CommandLine, Screen]) -> None:
    _, screen = first_build
    text = screen.text()
    assert screen.status == 1
    assert ERASE_ROW in screen.written
    assert b"\x1b[?25l" not in screen.written, "a hidden cursor would stay hidden after kill -9"
    assert " run · " not in text, "the live area is not erased"
    assert screen.cursor_column == 0
    assert re.search(r"^done +\d+\.\d s  good/trace +new$", text, re.MULTILINE)
    assert re.search(r"^done +\d+\.\d s  good/engine/model@ada +new$", text, re.MULTILINE)
    assert re.search(r"^FAIL +\d+\.\d s  broken/trace  +\S", text, re.MULTILINE)
    lines = text.splitlines()
    failure = next(number for number, line in enumerate(lines) if line == "FAIL broken/trace")
    assert "broken.py:2" in lines[failure + 1]
    assert "no such checkpoint" in text
    assert lines[-1].startswith("failed: 6 run, ")


def test_the_timeline_has_every_step_and_every_phase(first_build: tuple[CommandLine, Screen]) -> None:
    command_line, _ = first_build
    events = json.loads((command_line.project / "t.json").read_text())["traceEvents"]
    spans = {event["name"]: event["args"].get("verdict") for event in events if event["ph"] == "X"}
    assert spans["good/engine/model@ada"] == "run"
    assert spans["broken/trace"] == "failed"
    assert {"read the manifests", "plan", "outputs good"} <= set(spans)


def test_a_null_build_is_one_line_and_imports_no_rich(first_build: tuple[CommandLine, Screen], tmp_path: Path) -> None:
    command_line, _ = first_build
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rich', 'torch', 'tensorrt_rtx'):\n"
        "            raise ImportError(f'{name} must not be imported')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import trtbuild.cli.terminal.live\n"
        "trtbuild.cli.terminal.live.PHASE_DELAY_S = 600\n"  # otherwise planning is shown on a busy machine
    )
    screen = on_a_screen(command_line, "build", "good", PYTHONPATH=str(tmp_path))
    assert screen.status == 0, screen.text()
    assert re.fullmatch(r"up to date: 6 hit in \d+\.\d+ s", screen.text())


@pytest.mark.parametrize(
    ("arguments", "columns", "more", "is_live", "has_colour"),
    [
        ([], 30, {}, True, True),
        ([], 12, {}, True, True),
        ([], 80, {"NO_COLOR": "1"}, True, False),
        ([], 80, {"CI": "true"}, False, True),
        ([], 80, {"TERM": "dumb"}, False, False),
        (["--json"], 80, {}, True, True),
        (["--quiet"], 80, {}, False, False),
    ],
)
def test_live_rows_and_colour_depend_on_the_terminal_and_the_flags(
    first_build: tuple[CommandLine, Screen],
    arguments: list[str],
    columns: int,
    more: dict[str, str],
    is_live: bool,
    has_colour: bool,
) -> None:
    command_line, _ = first_build
    remove_engine_record(command_line)
    screen = on_a_screen(command_line, "build", "good", *arguments, columns=columns, **more)
    assert screen.status == 0, screen.text()
    whole = "".join(line.ljust(columns) for line in screen.lines()).rstrip()
    joined = re.sub(r"\s+", "", whole)  # on a narrow terminal, long lines continue on the next row
    assert (ERASE_ROW in screen.written) is is_live
    assert (re.search(rb"\x1b\[[0-9;]*m", screen.written) is not None) is has_colour
    assert "·" not in joined, "the live area is not erased"
    if "--quiet" in arguments:
        assert whole == ""
    else:
        assert "good/engine/model@ada" in joined, "the id of a finished step is missing or shortened"
    if "--json" in arguments:
        assert '"schema":"trtbuild.build/1"' in joined


@pytest.mark.parametrize("sent_signal", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_clean_terminal(command_line: CommandLine, sent_signal: signal.Signals) -> None:
    copy_project("two_models", command_line.project, *GOOD_AND_BROKEN)
    (command_line.project / "nets.py").write_text("import time\n\ndef first():\n    time.sleep(600)\n")
    screen = Screen()
    screens: list[str] = []

    def interrupt(screen: Screen, process: subprocess.Popen[bytes]) -> None:
        if not screens and re.search(r" [1-9]\.\d s  good/trace", screen.text()):
            screens.append(screen.text())
            process.send_signal(sent_signal)

    command = [sys.executable, *servers.python_arguments("trtbuild.__main__", os.environ), "build", "good"]
    screen.run(command, command_line.project, environment(command_line), watch=interrupt, timeout_s=120)
    assert screens, "the step never ran, so no signal was sent"
    assert screen.status == 130
    assert screen.text().strip() == "interrupted: the finished results are in the cache"
    assert screen.cursor_column == 0


def test_a_terminal_that_closes_before_the_first_step_does_not_fail_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    master, terminal_side = os.openpty()
    stream = os.fdopen(terminal_side, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    live = LiveProgress()
    os.close(master)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(terminal_side, b"x")
    step = a_step("vit", "engine")
    live.step_started(step)
    live.step_failed(step, TrtbuildError("no memory"))
    live.close()
    with contextlib.suppress(OSError):  # the stream still has the text that it could not write
        stream.close()
