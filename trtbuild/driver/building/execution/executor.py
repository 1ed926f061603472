"""Run the steps of plans in parallel. A step may start as soon as its inputs exist. Steps with the same key run once.

Rules
1. The plan decides which steps run, not the executor. When a step has ended, its model is planned again before any step
   that reads the outputs starts. A step may start if its verdict is ``run`` and its inputs exist. The most urgent step
   starts first (core/planning/priorities.py).
2. If several steps have the same key, one of them runs. The others wait for it and become hits. `LayeredStore.building`
   locks a key across processes. After the wait for a lock, a process looks in the store again before it runs the step.
3. A step that finds a missing or damaged blob has not failed. The next plan runs the step that makes the blob. The step
   that needs the blob fails only after `MAX_RETRIES` retries.
4. When a step fails, the steps that depend on it are skipped. Without ``keep_going``, no step starts after a failure, but
   the running steps are finished.
5. The outputs of a model are written as soon as all of its steps are hits, even if other models still run or have failed.
   If a blob of the outputs cannot be read, the model is planned again as in rule 3, except without `rebuild_lost`.
6. A step starts beside others only if the limit allows it. A step of this machine needs enough free memory (memory.py),
   and some engine steps also need an idle GPU (gpu_limit.py). An engine step of a scheduler's worker needs a worker that
   has room for it (driver/farm/limit.py). A step that is allowed may start before a more urgent step that has to wait.
7. Only the caller's thread makes plans and changes the executor's state. Other threads only call `run` and `write`.
8. A step may announce its results before it has checked them. Then its model is planned again, and the steps that read
   these results start. One announced step that still runs does not count as a job. The outputs of the model are written
   after the check.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.planning.priorities import ranks
from trtbuild.core.planning.resource_limit import NoLimit, ResourceLimit
from trtbuild.driver.building.execution.schedule import Schedule
from trtbuild.driver.building.execution.thread_pool import FinishedTask, ThreadPool
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project.outcome import Outcome, StepRun, WrittenOutput, is_done
from trtbuild.errors import BlobMissing, EntryCorrupt, StoreError, TrtbuildError

#: The largest number of retries after a blob could not be read, for each step and for the outputs of each model.
MAX_RETRIES = 8

#: Seconds between two calls of the limit, while a step waits for memory, a GPU or a worker.
LIMIT_POLL_S = 1.0

#: Seconds that `execute` waits at its end for the threads of each pool. Slower threads end with the process.
SHUTDOWN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Callbacks:
    """The functions that an executor calls.

    `replan` plans a model again, `run` runs one step, and `write` writes the outputs of a finished model. `abort` ends the
    running steps if `execute` ends with an exception. `last_duration_s`: step id → seconds of its last run.

    The last argument of `run` announces the results of the step (rule 8). `run` may call it once, as soon as `replan` can
    use the results.
    """

    replan: Callable[[str], ModelPlan]
    run: Callable[[Step, ModelPlan, Callable[[], None]], StepRun]
    write: Callable[[ModelPlan], list[WrittenOutput]] = lambda plan: []
    abort: Callable[[], None] = lambda: None
    last_duration_s: Callable[[str], float | None] = lambda step: None


@dataclass(frozen=True)
class _Announcement:
    """The message that the results of a running step can be used (rule 8)."""

    step: Step


#: A step to run, or the name of a model whose outputs have to be written. Running steps send announcements.
_Task = Step | str | _Announcement
_Result = StepRun | list[WrittenOutput]


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

    `outcome` has the first plans and the requested stages, and is kept up to date. At the end, every step of these stages
    is a hit, has failed, or depends on a failed step. Without `keep_going`, a failure may also leave steps that were not
    started. If outputs need a blob that cannot be read, the step that made the blob runs again. Without `rebuild_lost`,
    this step does not run, and `outcome.unwritten` has the error.
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
    """The state of one call of `execute`."""

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
        self._finished_tasks: SimpleQueue[FinishedTask[_Task, _Result]] = SimpleQueue()
        #: It has one thread more than `jobs`, because one announced step does not count as a job (rule 8).
        self._step_pool: ThreadPool[_Task, _Result] = ThreadPool(jobs + 1, self._finished_tasks)
        self._writer_pool: ThreadPool[_Task, _Result] = ThreadPool(1, self._finished_tasks)
        #: Model → the run of its partition step, which made conversions. The next plan of the model removes the entry.
        self._conversions: dict[str, StepRun] = {}
        #: Model → the error about an unreadable blob that its outputs need. Writing the outputs removes the entry.
        self._errors_of_outputs: dict[str, TrtbuildError] = {}
        #: Step id → how often the step has run in this build.
        self._run_counts: Counter[str] = Counter()
        #: Whether a step waits for the limit. Then the limit is asked again after `LIMIT_POLL_S`.
        self._limit_refused = False
        #: The keys of the running steps that have announced their results.
        self._announced_keys: set[str] = set()
        #: The models whose steps are all hits, and whose outputs wait for the end of an announced step.
        self._withheld_models: set[str] = set()

    def run_all(self) -> None:
        for plan in list(self.outcome.plans.values()):
            self._put_plan(plan)
        while True:
            self._start_steps()
            if not self._step_pool.open_task_count and not self._writer_pool.open_task_count:
                outdated = self._schedule.outdated_models()
                if not outdated:
                    break
                for name in outdated:
                    self._replan(name)
                continue
            self._process_finished_tasks()
        self.outcome.unwritten.update(self._errors_of_outputs)

    def shut_down(self, timeout_s: float) -> None:
        self._step_pool.shut_down(timeout_s)
        self._writer_pool.shut_down(timeout_s)

    # -- starting

    def _start_steps(self) -> None:
        self._limit_refused = False
        while self._job_count < self._jobs and (self._keep_going or not self.outcome.failed):
            step = self._schedule.take_step(self._fits)
            if step is None:
                return
            self._limit.acquire(step)
            self._watcher.step_started(step)
            self._step_pool.submit(step, self._step_callback(step, self.outcome.plans[step.model]))

    @property
    def _job_count(self) -> int:
        """The number of running steps. One step that has announced its results is not counted (rule 8)."""
        return self._step_pool.open_task_count - bool(self._announced_keys)

    def _step_callback(self, step: Step, plan: ModelPlan) -> Callable[[], _Result]:
        def announce() -> None:
            self._finished_tasks.put((_Announcement(step), []))

        return lambda: self._callbacks.run(step, plan, announce)

    def _fits(self, step: Step) -> bool:
        fits = self._limit.allows(step)
        self._limit_refused = self._limit_refused or not fits
        return fits

    # -- finishing

    def _process_finished_tasks(self) -> None:
        try:
            task, result = self._finished_tasks.get(timeout=LIMIT_POLL_S if self._limit_refused else None)
        except queue.Empty:
            return
        while True:
            if isinstance(task, _Announcement):
                self._process_announcement(task.step)
            elif isinstance(task, Step):
                self._step_pool.open_task_count -= 1
                self._limit.release(task)
                self._process_step_result(task, result)
            else:
                self._writer_pool.open_task_count -= 1
                self._process_written_outputs(task, result)
            try:
                task, result = self._finished_tasks.get_nowait()
            except queue.Empty:
                break
        for name in self._schedule.take_due_models():
            self._replan(name)

    def _process_announcement(self, step: Step) -> None:
        self._announced_keys.add(step.key or step.id)
        self._schedule.invalidate(step.model)

    def _process_end_of_check(self, step: Step, *, has_passed: bool) -> None:
        """Mark the model of `step`, and the models with withheld outputs, so that they are planned again.

        If the check has failed, every model that has a step with the same key is marked, too, because it may use the
        results.
        """
        key = step.key or step.id
        self._announced_keys.discard(key)
        models = {step.model, *self._withheld_models}
        if not has_passed:
            plans = self.outcome.plans.items()
            models |= {name for name, plan in plans if any(each.key == key for each in plan.steps.values())}
        self._withheld_models.clear()
        for name in models:
            self._schedule.invalidate(name)

    def _process_step_result(self, step: Step, result: _Result | BaseException) -> None:
        if (step.key or step.id) in self._announced_keys:
            self._process_end_of_check(step, has_passed=isinstance(result, StepRun))
        if isinstance(result, StepRun):
            if result.source == "built":
                self.outcome.ran[step.id] = (step.reason, result)
                self._run_counts[step.id] += 1
            count = self._run_counts[step.id]
            if count > MAX_RETRIES + 1:
                error: TrtbuildError = StoreError(
                    f"{step.id} was run {count} times, and its results were missing or damaged each time",
                    hint="find out which program removes or damages files of the cache, and build again",
                )
                self._schedule.note_failed(step)
                self._note_failure(step, error)
                return
            self._watcher.step_finished(step, result)
            self._schedule.note_finished(step)
            if result.conversions:  # the next plan finds the conversions in the cache
                self._conversions[step.model] = result
                self._schedule.invalidate(step.model)
            return
        error = _as_error(result)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._may_retry(step.id):
            self._schedule.note_retry(step)
            return
        self._schedule.note_failed(step)
        self._note_failure(step, error)

    def _process_written_outputs(self, model: str, result: _Result | BaseException) -> None:
        if isinstance(result, list):
            self.outcome.written[model] = result
            self._errors_of_outputs.pop(model, None)
            return
        error = _as_error(result)
        if isinstance(error, BlobMissing | EntryCorrupt) and self._rebuild_lost and self._may_retry(model):
            self._errors_of_outputs[model] = error
            self._schedule.invalidate(model)  # the step that makes the blob runs again (rule 3)
            return
        self.outcome.unwritten[model] = error

    def _may_retry(self, name: str) -> bool:
        self.outcome.retries[name] = self.outcome.retries.get(name, 0) + 1
        return self.outcome.retries[name] <= MAX_RETRIES

    def _note_failure(self, step: Step, error: TrtbuildError) -> None:
        self.outcome.failed[step.id] = (step.reason, error)
        self._watcher.step_failed(step, error)

    # -- planning

    def _replan(self, name: str) -> None:
        try:
            plan = self._callbacks.replan(name)
        except TrtbuildError as error:
            step = self._schedule.give_up(name)
            if step is None:  # all steps are finished, so only the outputs are not up to date
                self.outcome.unwritten[name] = error
            else:
                self._note_failure(step, error)
            return
        self.outcome.plans[name] = plan
        if name in self._conversions:
            self.outcome.note_conversions(plan, self._conversions.pop(name))
        self._put_plan(plan)

    def _put_plan(self, plan: ModelPlan) -> None:
        name = plan.model.name
        self._watcher.model_planned(plan)
        self._schedule.put_plan(plan, ranks(plan, self._callbacks.last_duration_s))
        is_checked = self._announced_keys.isdisjoint(step.key or step.id for step in plan.steps.values())
        is_pending = name not in self.outcome.written and name not in self.outcome.unwritten
        if not (plan.steps and is_pending and is_done(plan)):
            return
        if not is_checked:
            self._withheld_models.add(name)
        else:
            self._writer_pool.submit(name, lambda: self._callbacks.write(plan))


def _as_error(result: object) -> TrtbuildError:
    """The TrtbuildError that a step or a writer raised. Any other exception is a bug, and is raised again."""
    if isinstance(result, TrtbuildError):
        return result
    if isinstance(result, BaseException):
        raise result
    raise StoreError(f"a step returned {type(result).__name__}")
