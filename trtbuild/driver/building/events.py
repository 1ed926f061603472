"""Who is told what happens while a build runs: progress for people, a timeline for `--trace`. The build works the same
with nobody watching.

Rules
1. Calls come from several threads: a watcher that keeps state has a lock.
2. A watcher never raises for what it shows: a terminal that is gone is no reason to fail a build.
3. It is told what the build knows anyway. Nothing is computed for it, and each call costs at most the size of one model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.errors import TrtbuildError

if TYPE_CHECKING:  # `Ran` is at home beside the worker calls, which a watcher does not need
    from trtbuild.driver.project.outcome import Ran

LastDuration = Callable[[str], float | None]


@dataclass
class Work:
    """A piece of work: whether it has failed."""

    failed: bool = False


class Watcher:
    """Is told what happens; the base does nothing. Used as a context manager: whatever happens, `close` is called."""

    def opened(self, jobs: int, last_duration_s: LastDuration) -> None:
        """A build is about to run steps, at most `jobs` at once. `last_duration_s` is by step id."""

    def planned(self, plan: ModelPlan) -> None:
        """The plan of one model is this now; the first one, or one that takes the place of an earlier one."""

    def started(self, step: Step) -> None:
        """A step is running now."""

    def finished(self, step: Step, ran: Ran) -> None:
        """A step has run, or was found to have been run by another build meanwhile."""

    def failed(self, step: Step, error: TrtbuildError) -> None:
        """A step has failed."""

    def phase_started(self, name: str) -> None:
        """Work that is no step begins: planning, writing a model's outputs."""

    def phase_finished(self, name: str) -> None:
        """It has ended, well or not."""

    def work_started(self, name: str) -> None:
        """A piece of a command that has no steps begins: a model that is verified, shapes that are timed."""
        self.phase_started(name)

    def work_finished(self, name: str, *, well: bool) -> None:
        """It has ended."""
        self.phase_finished(name)

    def close(self) -> None:
        """The build has ended, well or not. Nothing is told after this."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`phase_started` and `phase_finished` around a block."""
        self.phase_started(name)
        try:
            yield
        finally:
            self.phase_finished(name)

    @contextlib.contextmanager
    def work(self, name: str) -> Iterator[Work]:
        """`work_started` and `work_finished` around a block, which may say that the work has failed."""
        self.work_started(name)
        work = Work()
        try:
            yield work
        except BaseException:
            work.failed = True
            raise
        finally:
            self.work_finished(name, well=not work.failed)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watchers(Watcher):
    """Tells several watchers, in order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def opened(self, jobs: int, last_duration_s: LastDuration) -> None:
        for watcher in self._watchers:
            watcher.opened(jobs, last_duration_s)

    def planned(self, plan: ModelPlan) -> None:
        for watcher in self._watchers:
            watcher.planned(plan)

    def started(self, step: Step) -> None:
        for watcher in self._watchers:
            watcher.started(step)

    def finished(self, step: Step, ran: Ran) -> None:
        for watcher in self._watchers:
            watcher.finished(step, ran)

    def failed(self, step: Step, error: TrtbuildError) -> None:
        for watcher in self._watchers:
            watcher.failed(step, error)

    def phase_started(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.phase_started(name)

    def phase_finished(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.phase_finished(name)

    def work_started(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.work_started(name)

    def work_finished(self, name: str, *, well: bool) -> None:
        for watcher in self._watchers:
            watcher.work_finished(name, well=well)

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()
