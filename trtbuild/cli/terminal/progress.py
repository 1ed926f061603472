"""The progress of a build on standard error: one line when a step starts, and one when it ends.

`Progress` writes these lines, for CI and pipes. `trtbuild.cli.terminal.live` is for terminals. Both count with `Tally`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from trtbuild.cli.terminal import terminal
from trtbuild.cli.terminal.quantities import count, duration
from trtbuild.cli.terminal.reasons import short_reason, shorten_to_width
from trtbuild.core.planning.graph import ModelPlan, Step, step_id
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:
    from trtbuild.driver.project.outcome import StepRun

#: The smallest and the largest width of the column of step ids. The text after longer ids is not aligned.
LEAST_ID_WIDTH, MOST_ID_WIDTH = 24, 48

#: The description at the end of a line is left out if there are fewer columns for it.
LEAST_DESCRIPTION_WIDTH = 12


@dataclass
class Tally:
    """The numbers of finished and of remaining steps.

    The cost of an event is at most linear in the number of one model's steps (rule 3 of `Watcher`'s module).
    """

    #: The finished steps, and the conversions to ONNX that partition steps made.
    done: int = 0
    failed: int = 0
    #: The hits in the last plan of each model, without those in `done`.
    hits: int = 0
    #: The other steps in these plans, without those in `done`.
    remaining: int = 0
    #: The width of the column of step ids, in characters.
    id_width: int = LEAST_ID_WIDTH
    #: Model → the ids of its remaining steps, and the number of its hits.
    _by_model: dict[str, tuple[set[str], int]] = field(default_factory=dict)
    #: The models whose partitions are not known yet.
    _unpartitioned: set[str] = field(default_factory=set)
    #: The ids of finished steps.
    _ran: set[str] = field(default_factory=set)
    #: The keys of the conversions in `done`.
    _converted: set[str] = field(default_factory=set)

    def planned(self, plan: ModelPlan) -> None:
        """Count the steps of a model's new plan in place of those of its last plan."""
        name = plan.model.name
        steps = [step for step in plan.steps.values() if step.id not in self._ran]
        remaining = {step.id for step in steps if step.verdict != "hit"}
        hits = sum(step.verdict == "hit" and step.key not in self._converted for step in steps)
        earlier_remaining, earlier_hits = self._by_model.get(name, (set(), 0))
        self._by_model[name] = (remaining, hits)
        self.remaining += len(remaining) - len(earlier_remaining)
        self.hits += hits - earlier_hits
        widths = (len(identifier) for identifier in (*plan.steps, *_expected_ids(plan)))
        self.id_width = max([self.id_width, *(width for width in widths if width <= MOST_ID_WIDTH)])
        partition = plan.steps.get(step_id(name, "partition"))
        if partition is None or partition.verdict == "hit":
            self._unpartitioned.discard(name)
        else:
            self._unpartitioned.add(name)

    def finished(self, step: Step, ran: StepRun) -> None:
        """Count a step that this or another build has run, and the step's conversions."""
        self.done += 1 + len(ran.conversions)
        self._ran.add(step.id)
        self._converted.update(ran.conversions)
        remaining, _ = self._by_model.get(step.model, (set(), 0))
        if step.id in remaining:
            remaining.remove(step.id)
            self.remaining -= 1

    @property
    def may_grow(self) -> bool:
        """Whether more steps may follow, because the partitions of a model are not known yet."""
        return bool(self._unpartitioned)

    def line(self, elapsed_s: float) -> str:
        """A summary: ``3/7+ run · 28 hit · 1 failed · 14.2 s``. Failed steps count as remaining."""
        parts = []
        if self.done or self.remaining:
            parts.append(f"{self.done}/{self.done + self.remaining}{'+' if self.may_grow else ''} run")
        if self.hits:
            parts.append(f"{self.hits} hit")
        if self.failed:
            parts.append(terminal.red(f"{self.failed} failed"))
        return " · ".join([*parts, duration(elapsed_s)])


def _expected_ids(plan: ModelPlan) -> list[str]:
    """The likely ids of a model's engines, if its partitions are not known yet.

    With these ids, the columns of a build are aligned from the first line on."""
    if not any(step.stage == "engine" and step.verdict == "unknown" for step in plan.steps.values()):
        return []
    model = plan.model
    partitions = model.partition.granularity  # ``layers.*`` is as long as ``layers.0``
    return [step_id(model.name, "engine", name, target.name) for name in partitions for target in model.targets]


class Progress(Watcher):
    """Progress as plain lines."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._lock = threading.RLock()
        #: The id of a step, or the name of other work → its start time.
        self._start_times: dict[str, float] = {}

    def model_planned(self, plan: ModelPlan) -> None:
        with self._lock:
            self.tally.planned(plan)

    def step_started(self, step: Step) -> None:
        with self._lock:
            self._start_times[step.id] = time.monotonic()
            self._write(self._row(terminal.dim("run "), "", step.id, short_reason(step.reason)))

    def step_finished(self, step: Step, ran: StepRun) -> None:
        with self._lock:
            self.tally.finished(step, ran)
            word = terminal.green("done") if ran.source == "built" else terminal.cyan("got ")
            self._write(self._row(word, self._elapsed(step.id), step.id, description(ran)))

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        with self._lock:
            self.tally.failed += 1
            self._write(self._row(terminal.red("FAIL"), self._elapsed(step.id), step.id, headline(error)))

    def warned(self, text: str) -> None:
        with self._lock:
            self._write(f"{terminal.yellow('warning')}: {text}")

    def work_started(self, name: str) -> None:
        with self._lock:
            self._start_times[name] = time.monotonic()
            self._write(self._row(terminal.dim("run "), "", name))

    def work_finished(self, name: str, *, succeeded: bool) -> None:
        with self._lock:
            word = terminal.green("done") if succeeded else terminal.red("FAIL")
            self._write(self._row(word, self._elapsed(name), name))

    def _row(self, word: str, elapsed: str, name: str, about: str = "", width: int | None = None) -> str:
        """One line for a step or other work. With `width`, `about` is shortened to the free columns, or left out."""
        row = f"{word} {elapsed:>8}  {name:{self.tally.id_width}}"
        if width is not None:
            free_columns = width - len(click.unstyle(row)) - 2
            about = shorten_to_width(about, free_columns) if free_columns >= LEAST_DESCRIPTION_WIDTH else ""
        return f"{row}  {terminal.dim(about)}" if about else row.rstrip()

    def _elapsed(self, name: str) -> str:
        return duration(time.monotonic() - self._start_times.pop(name, time.monotonic()))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not fail the build
            terminal.write_message(text)


def description(ran: StepRun) -> str:
    """The Dask worker that ran a step (``on gpu-host-812-gpu0``), or the number of partitions that a partition step
    converted to ONNX (``with 2 conversions``). Empty for other steps."""
    if ran.worker is not None:
        return f"on {ran.worker}"
    return f"with {count(len(ran.conversions), 'conversion')}" if ran.conversions else ""


def headline(error: TrtbuildError) -> str:
    """The first line of an error, because the whole error is shown at the end of the build."""
    return error.text.partition("\n")[0]


def crop(text: str, width: int) -> str:
    """Text without colour, cut at its end to at most `width` columns."""
    plain = click.unstyle(text)
    return plain if len(plain) <= width else f"{plain[: max(width - 1, 0)]}…"[:width]
