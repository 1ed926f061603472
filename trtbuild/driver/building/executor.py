"""The executor: it runs the steps of plans in parallel, each as soon as its inputs exist, and each key once.

Rules
1. The plan decides which steps run, not the executor. When steps have finished, their model is planned again before any
   step that consumes them starts. Then the steps with the verdict ``run`` whose inputs exist may start, the most urgent
   first (core/planning/priorities.py).
2. If several steps have the same key, one runs. The others wait for it and become hits. `Store.building` does the same
   across processes: the process that gets the lock second looks in the store again before it runs the step.
3. A step that finds a missing or damaged blob has not failed. The store has moved a damaged blob to the quarantine, so the
   next plan runs the step that makes the blob. The step fails only after `MAX_RETRIES` such retries.
4. When a step fails, the steps that depend on it are skipped. Without ``keep_going`` no step is started after a failure,
   but the running steps are finished.
5. A model's outputs are written as soon as all of its steps are hits, in parallel to other steps. A failure of another
   model does not prevent that. If a blob cannot be read, rule 3 applies.
6. A step starts beside others only if enough memory is free (driver/building/memory.py). Smaller steps may start before
   it.
7. Only the caller's thread makes plans and changes the state. Other threads only call `run` and `write`.
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
from trtbuild.driver.building.thread_pool import Done, ThreadPool
from trtbuild.driver.project.outcome import Outcome, Ran, Written, is_done
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreError, TrtbuildError

__all__ = ["MAX_RETRIES", "Callbacks", "Outcome", "ResourceLimit", "execute"]

#: The most retries of a step, or of writing a model's outputs, that cannot read a blob.
MAX_RETRIES = 8

#: Seconds between two checks of the free memory, while a step waits for memory.
MEMORY_POLL_S = 1.0

#: Seconds that an interrupted build waits for its threads. Threads that still run then end with the process.
SHUTDOWN_TIMEOUT_S = 5.0


class ResourceLimit(Protocol):
    """Decides whether a step may start beside the running steps (rule 6)."""

    def allows(self, step: Step) -> bool: ...

    def acquire(self, step: Step) -> None: ...

    def release(self, step: Step) -> None: ...


class NoLimit:
    """A limit that allows every step."""

    def allows(self, step: Step) -> bool:
        return True

    def acquire(self, step: Step) -> None:
        return

    def release(self, step: Step) -> None:
        return


@dataclass(frozen=True)
class Callbacks:
    """The functions that an executor calls.

    `replan` plans a model again, `run` runs one step, and `write` writes the outputs of a finished model. `abort` ends the
    running steps when the build is interrupted. `last_duration_s` returns the seconds that a step took last time, by id.
    """

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
    callbacks: Callbacks,
    *,
    jobs: int,
    watcher: Watcher,
    keep_going: bool = False,
    limit: ResourceLimit | None = None,
    rebuild_lost: bool = True,
) -> None:
    """Run the steps of all plans, and write the outputs of each finished model.

    At the end every step is a hit, has failed, or depends on a failed step. `outcome` contains the first plans and the
    requested stages, and is kept up to date. Without `rebuild_lost`, an unreadable blob that an output needs is an error:
    no step runs again to replace the blob.
    """
    execution = _Execution(outcome, callbacks, watcher, limit or NoLimit(), jobs, keep_going, rebuild_lost)
    try:
        execution.run_all()
    except BaseException:
        callbacks.abort()
        execution.shut_down(SHUTDOWN_TIMEOUT_S)
        raise
    execution.shut_down(SHUTDOWN_TIMEOUT_S)


class _Execution:
    def __init__(
        self,
        outcome: Outcome,
        callbacks: Callbacks,
        watcher: Watcher,
        limit: ResourceLimit,
        jobs: int,
        keep_going: bool,
        rebuild_lost: bool,
    ) -> None:
        self.outcome = outcome
        self._callbacks = callbacks
        self._watcher = watcher
        self._limit = limit
        self._jobs = jobs
        self._keep_going = keep_going
        self._rebuild_lost = rebuild_lost
        self._schedule = Schedule(outcome.stages)
        self._done: SimpleQueue[Done[_Task, _Result]] = SimpleQueue()
        self._steps: ThreadPool[_Task, _Result] = ThreadPool(jobs, self._done)
        self._writer: ThreadPool[_Task, _Result] = ThreadPool(1, self._done)
        #: Model → the plan and the result of a partition step that made conversions. Removed when the model has a new plan.
        self._conversions: dict[str, tuple[ModelPlan, Ran]] = {}
        #: Model → the error about an unreadable blob that its outputs need. Removed when the outputs are written.
        self._lost: dict[str, TrtbuildError] = {}
        self._runs: Counter[str] = Counter()
        self._limit_refused = False

    def run_all(self) -> None:
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

    def shut_down(self, timeout_s: float) -> None:
        self._steps.shut_down(timeout_s)
        self._writer.shut_down(timeout_s)

    # -- starting

    def _start(self) -> None:
        self._limit_refused = False
        while self._steps.busy < self._jobs and (self._keep_going or not self.outcome.failed):
            step = self._schedule.take(self._fits)
            if step is None:
                return
            self._limit.acquire(step)
            self._watcher.started(step)
            self._steps.submit(step, self._work(step, self.outcome.plans[step.model]))

    def _work(self, step: Step, plan: ModelPlan) -> Callable[[], _Result]:
        return lambda: self._callbacks.run(step, plan)

    def _fits(self, step: Step) -> bool:
        fits = self._limit.allows(step)
        self._limit_refused = self._limit_refused or not fits
        return fits

    # -- finishing

    def _wait(self) -> None:
        """Wait for a finished task, and process all finished tasks."""
        try:
            task, result = self._done.get(timeout=MEMORY_POLL_S if self._limit_refused else None)
        except queue.Empty:
            return
        while True:
            if isinstance(task, Step):
                self._steps.busy -= 1
                self._limit.release(task)
                self._step_done(task, result)
            else:
                self._writer.busy -= 1
                self._writing_done(task, result)
            try:
                task, result = self._done.get_nowait()
            except queue.Empty:
                break
        for name in self._schedule.due():
            self._plan(name)

    def _step_done(self, step: Step, result: _Result | BaseException) -> None:
        if isinstance(result, Ran):
            if result.source == "built":
                self.outcome.ran[step.id] = (step.reason, result)
                self._runs[step.id] += 1
            if self._runs[step.id] > MAX_RETRIES + 1:
                error: TrtbuildError = StoreError(
                    f"{step.id} was run {self._runs[step.id]} times, and its results were missing or damaged each time",
                    hint="find out which program removes or damages files of the cache, and build again",
                )
                self._schedule.failed(step)
                self._fail(step, error)
                return
            if result.conversions:
                self._conversions[step.model] = (self.outcome.plans[step.model], result)
            self._watcher.finished(step, result)
            self._schedule.finished(step)
            if result.conversions:
                self._schedule.invalidate(step.model)
            return
        error = _error_of(result)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._may_retry(step.id):
            self._schedule.again(step)
            return
        self._schedule.failed(step)
        self._fail(step, error)

    def _writing_done(self, model: str, result: _Result | BaseException) -> None:
        if isinstance(result, list):
            self.outcome.written[model] = result
            self._lost.pop(model, None)
            return
        error = _error_of(result)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._rebuild_lost and self._may_retry(model):
            self._lost[model] = error
            self._schedule.invalidate(model)  # the step that makes the blob runs again (rule 3)
            return
        self.outcome.unwritten[model] = error

    def _may_retry(self, name: str) -> bool:
        self.outcome.retries[name] = self.outcome.retries.get(name, 0) + 1
        return self.outcome.retries[name] <= MAX_RETRIES

    def _fail(self, step: Step, error: TrtbuildError) -> None:
        self.outcome.failed[step.id] = (step.reason, error)
        self._watcher.failed(step, error)

    # -- planning

    def _plan(self, name: str) -> None:
        try:
            plan = self._callbacks.replan(name)
        except TrtbuildError as error:
            step = self._schedule.give_up(name)
            if step is None:  # no step was open, so only the outputs are not up to date
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
        self._schedule.put(plan, ranks(plan, self._callbacks.last_duration_s))
        if plan.steps and is_done(plan) and name not in self.outcome.written and name not in self.outcome.unwritten:
            self._writer.submit(name, lambda: self._callbacks.write(plan))


def _error_of(result: object) -> TrtbuildError:
    """The error that a step or a writer raised. Exceptions of other types are raised again: they are bugs."""
    if isinstance(result, TrtbuildError):
        return result
    if isinstance(result, BaseException):
        raise result
    raise StoreError(f"a step returned {type(result).__name__}")


def _note_conversions(outcome: Outcome, before: ModelPlan, after: ModelPlan, ran: Ran) -> None:
    """Add the convert steps whose conversions the partition step made to the steps that ran."""
    durations_s = dict(ran.conversions)
    for step in after.steps.values():
        if step.stage == "convert" and step.key in durations_s and step.record is not None:
            duration_s = durations_s.pop(step.key)
            reason = Reason("new", "the partition step converted it to ask the parser")
            outcome.ran[step.id] = (reason, replace(ran, record=step.record, duration_s=duration_s, conversions={}))
