"""Doing what plans say: every step as early as its inputs are there, several at once, each key once.

Rules
1. Nothing is decided here. When steps have finished their model is planned again, before anything that consumes them
   starts; what the plan then calls ``run`` and whose inputs are there may start, most urgent first
   (core/planning/priorities.py).
2. Of steps with one key, one runs; the others wait for it and become hits. Across processes `Store.building` does the
   same: who gets the lock second looks again before working.
3. A step that finds a blob gone or damaged has not failed: the store has put that blob aside, so the next plan runs
   the step that left it. Only if that comes about again and again (`MENDS`) it is an error.
4. A failed step skips what is below it. Without ``keep_going`` no step is started after a failure, and what runs is
   finished.
5. A model's outputs are written as soon as all of its steps are hits, beside the steps that run, and after a failure
   elsewhere too. What cannot be read then is rule 3's.
6. A step starts beside others only if its memory is there (driver/building/memory.py). Smaller ones may go ahead of it.
7. Plans are made and counted in the caller's thread alone; only `run` and `write` are called in others.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Protocol

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.planning.priorities import ranks
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.building.schedule import Schedule
from trtbuild.driver.building.thread_pool import Crew, Done
from trtbuild.driver.project.outcome import Outcome, Ran, Written, is_done
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreError, TrtbuildError

__all__ = ["MENDS", "Doing", "Outcome", "Room", "execute"]

#: How often one step, or one model's outputs, are tried again because a blob that they read cannot be read.
MENDS = 8

#: Seconds after which memory is looked at again while a step waits for it.
LOOK_AGAIN_S = 1.0

#: Seconds that an interrupted build waits for its threads. What still runs then ends with the process.
PATIENCE_S = 5.0


class Room(Protocol):
    """Says whether a step may start beside those that run (rule 6)."""

    def has(self, step: Step) -> bool: ...

    def enter(self, step: Step) -> None: ...

    def leave(self, step: Step) -> None: ...


class Unlimited:
    """As much room as is asked for."""

    def has(self, step: Step) -> bool:
        return True

    def enter(self, step: Step) -> None:
        return

    def leave(self, step: Step) -> None:
        return


@dataclass(frozen=True)
class Doing:
    """What a build is made of: `replan` plans a model anew, `run` does one step, `write` writes a finished model's
    outputs. When a build is interrupted, `abort` has to end what runs."""

    replan: Callable[[str], ModelPlan]
    run: Callable[[Step, ModelPlan], Ran]
    write: Callable[[ModelPlan], list[Written]] = lambda plan: []
    abort: Callable[[], None] = lambda: None
    last_duration_s: Callable[[str], float | None] = lambda step: None


#: A step that runs, or the model whose outputs are written.
_Task = Step | str
_Result = Ran | list[Written]


def execute(
    outcome: Outcome,
    doing: Doing,
    *,
    jobs: int,
    watcher: Watcher,
    keep_going: bool = False,
    room: Room | None = None,
    mend: bool = True,
) -> None:
    """Run until every step is a hit, or failed or below a failed one, and the outputs of all models that are done are
    written. `outcome` has the first plans and the stages that are asked for, and is kept up to date. Without `mend`
    nothing is run for outputs whose blobs cannot be read."""
    execution = _Execution(outcome, doing, watcher, room or Unlimited(), jobs, keep_going, mend)
    try:
        execution.go()
    except BaseException:
        doing.abort()
        execution.dismiss(PATIENCE_S)
        raise
    execution.dismiss(PATIENCE_S)


class _Execution:
    def __init__(
        self,
        outcome: Outcome,
        doing: Doing,
        watcher: Watcher,
        room: Room,
        jobs: int,
        keep_going: bool,
        mend: bool,
    ) -> None:
        self.outcome = outcome
        self._doing = doing
        self._watcher = watcher
        self._room = room
        self._jobs = jobs
        self._keep_going = keep_going
        self._mend = mend
        self._schedule = Schedule(outcome.stages)
        self._done: SimpleQueue[Done[_Task, _Result]] = SimpleQueue()
        self._steps: Crew[_Task, _Result] = Crew(jobs, self._done)
        self._writer: Crew[_Task, _Result] = Crew(1, self._done)
        #: Model → conversions that its partition step made, until the next plan knows their records.
        self._conversions: dict[str, tuple[ModelPlan, Ran]] = {}
        #: Models whose outputs are to be written once what could not be read is made again, and what that was.
        self._lost: dict[str, TrtbuildError] = {}
        self._times: Counter[str] = Counter()
        self._refused = False

    def go(self) -> None:
        for plan in list(self.outcome.plans.values()):
            self._planned(plan)
        while True:
            self._start()
            if not self._steps.busy and not self._writer.busy:
                outdated = self._schedule.outdated()
                if not outdated:
                    break
                for name in outdated:
                    self._plan(name)
                continue
            self._wait()
        self.outcome.unwritten.update(self._lost)

    def dismiss(self, timeout_s: float) -> None:
        self._steps.dismiss(timeout_s)
        self._writer.dismiss(timeout_s)

    # -- starting

    def _start(self) -> None:
        self._refused = False
        while self._steps.busy < self._jobs and (self._keep_going or not self.outcome.failed):
            step = self._schedule.take(self._fits)
            if step is None:
                return
            self._room.enter(step)
            self._watcher.started(step)
            self._steps.give(step, self._work(step, self.outcome.plans[step.model]))

    def _work(self, step: Step, plan: ModelPlan) -> Callable[[], _Result]:
        return lambda: self._doing.run(step, plan)

    def _fits(self, step: Step) -> bool:
        fits = self._room.has(step)
        self._refused = self._refused or not fits
        return fits

    # -- finishing

    def _wait(self) -> None:
        """Take in all that is done; wait for the first of it."""
        try:
            task, found = self._done.get(timeout=LOOK_AGAIN_S if self._refused else None)
        except queue.Empty:
            return
        while True:
            if isinstance(task, Step):
                self._steps.busy -= 1
                self._room.leave(task)
                self._step_done(task, found)
            else:
                self._writer.busy -= 1
                self._writing_done(task, found)
            try:
                task, found = self._done.get_nowait()
            except queue.Empty:
                break
        for name in self._schedule.due():
            self._plan(name)

    def _step_done(self, step: Step, found: _Result | BaseException) -> None:
        if isinstance(found, Ran):
            if found.source == "built":
                self.outcome.ran[step.id] = (step.reason, found)
                self._times[step.id] += 1
            if self._times[step.id] > MENDS + 1:
                error: TrtbuildError = StoreError(
                    f"{step.id} was run {self._times[step.id]} times, and what it left is gone each time",
                    hint="look for what removes or damages files of the cache, and build again",
                )
                self._schedule.failed(step)
                self._fail(step, error)
                return
            if found.conversions:
                self._conversions[step.model] = (self.outcome.plans[step.model], found)
            self._watcher.finished(step, found)
            self._schedule.finished(step)
            if found.conversions:
                self._schedule.invalidate(step.model)
            return
        error = _typed(found)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._may_mend(step.id):
            self._schedule.again(step)
            return
        self._schedule.failed(step)
        self._fail(step, error)

    def _writing_done(self, model: str, found: _Result | BaseException) -> None:
        if isinstance(found, list):
            self.outcome.written[model] = found
            self._lost.pop(model, None)
            return
        error = _typed(found)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._mend and self._may_mend(model):
            self._lost[model] = error
            self._schedule.invalidate(model)  # what could not be read is in quarantine now: who left it runs again
            return
        self.outcome.unwritten[model] = error

    def _may_mend(self, what: str) -> bool:
        self.outcome.mended[what] = self.outcome.mended.get(what, 0) + 1
        return self.outcome.mended[what] <= MENDS

    def _fail(self, step: Step, error: TrtbuildError) -> None:
        self.outcome.failed[step.id] = (step.reason, error)
        self._watcher.failed(step, error)

    # -- planning

    def _plan(self, name: str) -> None:
        try:
            plan = self._doing.replan(name)
        except TrtbuildError as error:
            step = self._schedule.give_up(name)
            if step is None:  # nothing was open: what cannot be brought up to date are the outputs
                self.outcome.unwritten[name] = error
            else:
                self._fail(step, error)
            return
        self.outcome.plans[name] = plan
        if name in self._conversions:
            before, ran = self._conversions.pop(name)
            _note_conversions(self.outcome, before, plan, ran)
        self._planned(plan)

    def _planned(self, plan: ModelPlan) -> None:
        name = plan.model.name
        self._watcher.planned(plan)
        self._schedule.put(plan, ranks(plan, self._doing.last_duration_s))
        if plan.steps and is_done(plan) and name not in self.outcome.written and name not in self.outcome.unwritten:
            self._writer.give(name, lambda: self._doing.write(plan))


def _typed(found: object) -> TrtbuildError:
    """The error that a step or a writer met. What is no error of ours goes on to the caller: nobody expected it."""
    if isinstance(found, TrtbuildError):
        return found
    if isinstance(found, BaseException):
        raise found
    raise StoreError(f"a step left {type(found).__name__}")


def _note_conversions(outcome: Outcome, before: ModelPlan, after: ModelPlan, ran: Ran) -> None:
    """Conversions that the partition step made on its way are convert steps that ran."""
    made = dict(ran.conversions)
    for step in after.steps.values():
        if step.stage == "convert" and step.key in made and step.record is not None:
            duration = made.pop(step.key)
            reason = Reason("new", "the partition step needed it to ask the parser")
            outcome.ran[step.id] = (reason, replace(ran, record=step.record, duration_s=duration, conversions={}))
