"""Doing what plans say: every step as early as its inputs are there, several at once, each key once.

Rules
1. Nothing is decided here. After each finished step its model is planned again; what the plan then calls ``run`` and
   whose inputs are there is started.
2. Of steps with one key, one runs; the others wait for it and become hits. Across processes `Store.building` does the
   same: who gets the lock second looks again before working.
3. A step that finds a blob gone or damaged has not failed: the store has put that blob aside, so the next plan runs
   the step that left it. Only if that comes about again and again (`MENDS`) it is an error.
4. A failed step skips what is below it. Without ``keep_going`` nothing new is started after a failure, and what runs is
   finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from trtbuild.core.graph import Reason, Step
from trtbuild.core.planning import ModelPlan
from trtbuild.driver.steps import Ran
from trtbuild.errors import BlobMissing, EntryCorrupt, TrtbuildError

#: How often one step is planned again because a blob that it reads cannot be read.
MENDS = 8


@dataclass
class Outcome:
    """What came of a build: the last plan of each model, what was run (by step id) and what failed."""

    plans: dict[str, ModelPlan]
    ran: dict[str, tuple[Reason, Ran]] = field(default_factory=dict)
    failed: dict[str, tuple[Reason, TrtbuildError]] = field(default_factory=dict)
    #: Step id → how often a blob that it reads could not be read.
    mended: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed and all(
            step.verdict == "hit" for plan in self.plans.values() for step in plan.steps.values()
        )


class Watcher:
    """Is told what happens; the base does nothing."""

    def started(self, step: Step) -> None:
        """A step is running now."""

    def finished(self, step: Step, ran: Ran) -> None:
        """A step has run."""

    def failed(self, step: Step, error: TrtbuildError) -> None:
        """A step has failed."""


def execute(
    plans: Mapping[str, ModelPlan],
    replan: Callable[[str], ModelPlan],
    run: Callable[[Step, ModelPlan], Ran],
    *,
    jobs: int,
    keep_going: bool,
    watcher: Watcher,
    abort: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run until every step is a hit, or failed or below a failed one. `run` does one step; `replan` plans a model anew.

    When this is interrupted, `abort` is called before it waits for the steps that run: it has to end them.
    """
    outcome = Outcome(dict(plans))
    running: dict[Future[Ran], tuple[str, Step]] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="trtbuild") as pool:
        try:
            while True:
                if keep_going or not outcome.failed:
                    for model, step in _ready(outcome, {step.key for _, step in running.values()}, jobs - len(running)):
                        watcher.started(step)
                        running[pool.submit(run, step, outcome.plans[model])] = (model, step)
                if not running:
                    return outcome
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    model, step = running.pop(future)
                    _finish(outcome, model, step, future, replan, watcher)
        except BaseException:
            for future in running:
                future.cancel()
            abort()
            raise


def _ready(outcome: Outcome, busy: set[str | None], free: int) -> list[tuple[str, Step]]:
    """Steps that may start now: those that lead to the most work first, which is the order of the stages."""
    found = []
    failed_keys = {
        step.key for plan in outcome.plans.values() for step in plan.steps.values() if step.id in outcome.failed
    }
    for model, plan in outcome.plans.items():
        for step in plan.steps.values():
            if step.verdict != "run" or step.key in busy or step.id in outcome.failed or step.key in failed_keys:
                continue
            if all(plan.steps[before].verdict == "hit" for before in step.after if before in plan.steps):
                busy = busy | {step.key}
                found.append((model, step))
    return found[: max(free, 0)]


def _finish(
    outcome: Outcome,
    model: str,
    step: Step,
    future: Future[Ran],
    replan: Callable[[str], ModelPlan],
    watcher: Watcher,
) -> None:
    try:
        ran = future.result()
    except TrtbuildError as error:
        if isinstance(error, BlobMissing | EntryCorrupt) and outcome.mended.get(step.id, 0) < MENDS:
            outcome.mended[step.id] = outcome.mended.get(step.id, 0) + 1
            _plan_again(outcome, (model,), model, step, replan, watcher)
            return
        outcome.failed[step.id] = (step.reason, error)
        watcher.failed(step, error)
        return
    if ran.source == "built":
        outcome.ran[step.id] = (step.reason, ran)
    watcher.finished(step, ran)
    before = outcome.plans[model]
    sharing = [
        name
        for name, plan in outcome.plans.items()
        if name != model and any(other.key == step.key and other.verdict == "run" for other in plan.steps.values())
    ]
    _plan_again(outcome, (model, *sharing), model, step, replan, watcher)
    _note_conversions(outcome, before, outcome.plans[model], ran)


def _plan_again(
    outcome: Outcome,
    names: Sequence[str],
    model: str,
    step: Step,
    replan: Callable[[str], ModelPlan],
    watcher: Watcher,
) -> None:
    for name in names:
        try:
            outcome.plans[name] = replan(name)
        except TrtbuildError as error:
            outcome.failed[step.id if name == model else f"{name}/{step.stage}"] = (step.reason, error)
            watcher.failed(step, error)


def _note_conversions(outcome: Outcome, before: ModelPlan, after: ModelPlan, ran: Ran) -> None:
    """Conversions that the partition step made on its way are convert steps that ran."""
    made = dict(ran.conversions)
    for step in after.steps.values():
        if step.stage == "convert" and step.key in made and step.record is not None:
            duration = made.pop(step.key)
            reason = Reason("new", "the partition step needed it to ask the parser")
            outcome.ran[step.id] = (reason, replace(ran, record=step.record, duration_s=duration, conversions={}))
