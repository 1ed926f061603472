"""Live progress on a terminal, with rich: lines of finished steps, and below them an area with the running steps.

Rules
1. Rich is imported when the first step starts, or when a phase takes longer than `PHASE_DELAY_S`. So a build that quickly
   finds nothing to do does not import rich. A phase is work that is not a step, such as planning.
   When a phase ends, it gets a line only if `work_started` began it.
2. In the line of a finished step, only the text after the step's id may be cut. Each line of the area fits into one row of
   the screen.
3. The area uses at most half of the screen, so that finished steps stay visible. On a tiny screen, it uses up to two rows.
4. `close` removes the area at the end of every build, also after an error.
5. The cursor stays visible. If rich hid it, it would stay hidden after a ``kill -9``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.progress import Progress, crop, description, headline
from trtbuild.cli.terminal.quantities import duration
from trtbuild.cli.terminal.reasons import short_reason
from trtbuild.core.planning.graph import Step
from trtbuild.driver.building.progress.events import LastDuration
from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from trtbuild.driver.project.outcome import StepRun

#: How many times per second the area is redrawn.
REFRESH = 8

#: A phase is shown when it takes longer than this, in s.
PHASE_DELAY_S = 1.0

#: The least number of columns for a step's id. With fewer columns, the duration of the last run is left out.
LEAST_NAME_WIDTH = 12

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_SPINNER = "|/-\\"


class _Running(NamedTuple):
    """A running step or phase."""

    name: str
    start_time: float
    last_duration_s: float | None


class LiveProgress(Progress):
    """Progress as lines of finished steps and an area with the running ones."""

    def __init__(self) -> None:
        super().__init__()
        self._build_start = time.monotonic()
        #: Step id → the running step.
        self._running: dict[str, _Running] = {}
        #: The steps in the area. Rich's thread reads them without `_lock`, because a thread that holds `_lock` may wait
        #: for rich.
        self._area_rows: tuple[_Running, ...] = ()
        self._last_duration_s: LastDuration = lambda _: None
        #: Phase → its start time.
        self._phases: dict[str, float] = {}
        #: Shows the area when a phase has taken `PHASE_DELAY_S`.
        self._timer: threading.Timer | None = None
        #: The area; None before it is shown, and after `close`.
        self._live: Live | None = None
        self._spinner = SPINNER if terminal.is_unicode(sys.stderr) else ASCII_SPINNER

    def build_started(self, jobs: int, last_duration_s: LastDuration) -> None:
        self._last_duration_s = last_duration_s

    def step_started(self, step: Step) -> None:
        with self._lock:
            start_time = self._start_times[step.id] = time.monotonic()
            self._running[step.id] = _Running(step.id, start_time, self._last_duration_s(step.id))
            self._area_rows = tuple(self._running.values())
            self._show_area()

    def step_finished(self, step: Step, ran: StepRun) -> None:
        with self._lock:
            self._remove_row(step)
            self.tally.finished(step, ran)
            if ran.source == "built":
                about = ", ".join(filter(None, (short_reason(step.reason), description(ran))))
                self._write_above_area(terminal.green("done"), step.id, about)
            else:
                self._write_above_area(terminal.cyan("got "), step.id, "another build made it")

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        with self._lock:
            self._remove_row(step)
            self.tally.failed += 1
            self._write_above_area(terminal.red("FAIL"), step.id, headline(error))

    def work_started(self, name: str) -> None:
        with self._lock:
            self._start_times[name] = time.monotonic()
            self.phase_started(name)

    def work_finished(self, name: str, *, succeeded: bool) -> None:
        with self._lock:
            self.phase_finished(name, succeeded=succeeded)
            self._write_above_area(terminal.green("done") if succeeded else terminal.red("FAIL"), name)

    def phase_started(self, name: str) -> None:
        with self._lock:
            self._phases = {**self._phases, name: time.monotonic()}
            if self._live is None and self._timer is None:
                self._timer = threading.Timer(PHASE_DELAY_S, self._show_area_of_phase)
                self._timer.daemon = True
                self._timer.start()

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        with self._lock:
            self._phases = {phase: start_time for phase, start_time in self._phases.items() if phase != name}
            if not self._phases:
                self._stop_timer()

    def close(self) -> None:
        with self._lock:
            self._stop_timer()
            live, self._live = self._live, None
            self._area_rows, self._phases = (), {}
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def _show_area(self) -> None:
        if self._live is None:
            self._live = self._area()
            with contextlib.suppress(OSError):  # a closed terminal must not fail the build
                self._live.start(refresh=True)

    def _show_area_of_phase(self) -> None:
        with self._lock:
            if self._phases:  # the last phase may have ended just now
                self._show_area()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remove_row(self, step: Step) -> None:
        self._running.pop(step.id, None)
        self._area_rows = tuple(self._running.values())

    def _write_above_area(self, word: str, name: str, about: str = "") -> None:
        width = self._live.console.width if self._live is not None else 80
        self._write(self._row(word, self._elapsed(name), name, about, width))

    def _write(self, text: str) -> None:
        if self._live is None:
            super()._write(text)
        else:
            with contextlib.suppress(OSError):
                self._live.console.print(_rich_text(text), soft_wrap=True)

    def _area(self) -> Live:
        from rich.live import Live

        return Live(
            console=_console(),
            get_renderable=self._render_area,
            refresh_per_second=REFRESH,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _render_area(self) -> Text:
        """The area as a text of rich. The thread of rich calls this method, too."""
        live = self._live
        width, height = live.console.size if live is not None else (80, 24)
        return _rich_text("\n".join(self.area(width, height)))

    def area(self, width: int, height: int) -> list[str]:
        now = time.monotonic()
        frame = self._spinner[int(now * REFRESH) % len(self._spinner)]
        phases = [
            _Running(name, start_time, None)
            for name, start_time in self._phases.items()
            if now - start_time > PHASE_DELAY_S
        ]
        running = [*phases, *self._area_rows]
        most_rows = max(1, height // 2 - 1)
        shown = running if len(running) <= most_rows else running[: most_rows - 1]
        rows = [self._running_row(entry, now, frame, width) for entry in shown]
        if len(shown) < len(running):
            rows.append(terminal.dim(crop(f"     … and {len(running) - len(shown)} more", width - 1)))
        total = f"     {self.tally.line(now - self._build_start)}"
        return [*rows, total if len(click.unstyle(total)) < width else crop(total.lstrip(), width - 1)]

    def _running_row(self, entry: _Running, now: float, frame: str, width: int) -> str:
        step, last_s = entry.name, entry.last_duration_s
        head = f"{frame:>4} {duration(now - entry.start_time):>8}  "
        free_columns = width - len(head) - 1  # one column stays free, because some terminals wrap a full row
        if free_columns < 8:  # only the spinner and the name fit
            return crop(f"{frame} {step}", width - 1)
        if last_s:
            note = f"  last time {duration(last_s)}"
            name_width = self.tally.id_width  # as in the lines of finished steps
            if max(len(step), name_width) + len(note) > free_columns:
                note = f"  last {duration(last_s)}"
                name_width = free_columns - len(note)  # the note is then at the right edge
            if name_width >= LEAST_NAME_WIDTH:
                name = _without_middle(step, free_columns - len(note))
                return f"{terminal.cyan(head)}{name:{name_width}}{terminal.dim(note)}"
        return f"{terminal.cyan(head)}{_without_middle(step, free_columns)}"


def _without_middle(text: str, width: int) -> str:
    """`text` in at most `width` columns. A longer text loses its middle: the two ends of a step's id identify the step."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[head + len(text) - width + 1 :]}"


def _console() -> Console:
    from rich.console import Console

    class ConsoleWithCursor(Console):  # rule 5
        def show_cursor(self, show: bool = True) -> bool:
            return False

    coloured = terminal.shows_colour(sys.stderr)
    return ConsoleWithCursor(
        file=sys.stderr,
        force_terminal=True,
        color_system="standard" if coloured else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _rich_text(text: str) -> Text:
    """`text` for `_console`, with the characters that standard error supports."""
    from rich.text import Text

    return Text.from_ansi(terminal.render(text, sys.stderr), no_wrap=True, end="\n")
