"""The base class of watchers, which receive the events of a build. Watchers are the progress display, the timeline of
`--trace`, and the recorder of `--events`.

Rules
1. Several threads call a watcher, so a watcher with state needs a lock.
2. A watcher never raises an error about its output, because a closed terminal must not fail a build.
3. Events contain only values that the build has already computed. The time of one call is at most linear in the number of
   a model's steps.
4. A build without watchers gives the same results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:  # at run time, these modules would import code that a progress display does not need
    from types import TracebackType

    from trtbuild.driver.answers.documents import Build
    from trtbuild.driver.project.outcome import StepRun, WrittenOutput

#: Returns the seconds that the step with this id took last time; None if they are not known.
LastDuration = Callable[[str], float | None]


@dataclass
class Work:
    """Whether the work in a block of `Watcher.work` has failed."""

    failed: bool = False


class Watcher:
    """Receives the events of a build. The base class ignores them. As a context manager, a watcher is closed at the end."""

    def build_started(self, jobs: int, last_duration_s: LastDuration) -> None:
        """A build begins to run steps, at most `jobs` at once on this machine."""

    def model_planned(self, plan: ModelPlan) -> None:
        """A model was planned, for the first time or again."""

    def step_started(self, step: Step) -> None:
        """A step has started."""

    def step_finished(self, step: Step, ran: StepRun) -> None:
        """A step has run in this build, or meanwhile in another build (`StepRun.source`)."""

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        """A step has failed."""

    def warned(self, text: str) -> None:
        """Something happened that the user should know at once."""

    def phase_started(self, name: str) -> None:
        """Work that is not a step begins, for example planning, or writing a model's outputs."""

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        """A phase has ended. `succeeded` is False if an exception ended it."""

    def work_started(self, name: str) -> None:
        """A phase begins that can also fail without an exception, for example the verification of a model."""
        self.phase_started(name)

    def work_finished(self, name: str, *, succeeded: bool) -> None:
        """A phase of `work_started` has ended."""
        self.phase_finished(name, succeeded=succeeded)

    def outputs_written(self, outputs: Sequence[WrittenOutput]) -> None:
        """The outputs of a model are up to date."""

    def build_finished(self, document: Build) -> None:
        """The build has ended, with or without failed steps. `document` is its result."""

    def build_stopped(self, error: BaseException) -> None:
        """An exception has ended the build, for example an error of a manifest, or Ctrl-C."""

    def close(self) -> None:
        """No event follows."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Call `phase_started` before a block and `phase_finished` after it."""
        self.phase_started(name)
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            self.phase_finished(name, succeeded=succeeded)

    @contextlib.contextmanager
    def work(self, name: str) -> Iterator[Work]:
        """Call `work_started` before a block and `work_finished` after it. The block may set `Work.failed`."""
        self.work_started(name)
        work = Work()
        try:
            yield work
        except BaseException:
            work.failed = True
            raise
        finally:
            self.work_finished(name, succeeded=not work.failed)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.build_stopped(error)
        self.close()


class Watchers(Watcher):
    """Passes each event to several watchers, in order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def build_started(self, jobs: int, last_duration_s: LastDuration) -> None:
        for watcher in self._watchers:
            watcher.build_started(jobs, last_duration_s)

    def model_planned(self, plan: ModelPlan) -> None:
        for watcher in self._watchers:
            watcher.model_planned(plan)

    def step_started(self, step: Step) -> None:
        for watcher in self._watchers:
            watcher.step_started(step)

    def step_finished(self, step: Step, ran: StepRun) -> None:
        for watcher in self._watchers:
            watcher.step_finished(step, ran)

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        for watcher in self._watchers:
            watcher.step_failed(step, error)

    def warned(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.warned(text)

    def phase_started(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.phase_started(name)

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        for watcher in self._watchers:
            watcher.phase_finished(name, succeeded=succeeded)

    def work_started(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.work_started(name)

    def work_finished(self, name: str, *, succeeded: bool) -> None:
        for watcher in self._watchers:
            watcher.work_finished(name, succeeded=succeeded)

    def outputs_written(self, outputs: Sequence[WrittenOutput]) -> None:
        for watcher in self._watchers:
            watcher.outputs_written(outputs)

    def build_finished(self, document: Build) -> None:
        for watcher in self._watchers:
            watcher.build_finished(document)

    def build_stopped(self, error: BaseException) -> None:
        for watcher in self._watchers:
            watcher.build_stopped(error)

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()
