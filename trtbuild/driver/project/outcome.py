"""The outcome of a build: the plans, the runs and failures of steps, and the written outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtbuild.core.planning.graph import STAGES, ModelPlan, Reason
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.record import Record
from trtbuild.errors import TrtbuildError


@dataclass(frozen=True)
class StepRun:
    """The result of a step that was run.

    `source` is ``built``, or the origin of a record that another build has stored. `uncacheable` is the reason why the
    result was not cached, or None. A partition step may also do the work of convert steps: `conversions` maps the keys of
    these steps to seconds. `observations` are those of a step that runs user code. `worker` is the name of the scheduler's
    worker that ran the step, or None.
    """

    record: Record
    duration_s: float
    source: str = "built"
    uncacheable: str | None = None
    conversions: Mapping[str, float] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    log: str = ""
    peak_rss_bytes: int = 0
    worker: str | None = None


@dataclass(frozen=True)
class WrittenOutput:
    """One output of a model, and whether this build has changed its files."""

    model: str
    kind: str
    path: str
    changed: bool


@dataclass
class Outcome:
    """The state of a build, which the executor keeps up to date. Only steps of `stages` run.

    `ran` and `failed` map step ids to the results and the errors of steps. `plans`, `written` and `unwritten` have names of
    models as keys. `plans` has the last plan of each model, and `written` its outputs, if they are up to date. `unwritten`
    has the error of each model whose outputs could not be written.
    """

    plans: dict[str, ModelPlan]
    ran: dict[str, tuple[Reason, StepRun]] = field(default_factory=dict)
    failed: dict[str, tuple[Reason, TrtbuildError]] = field(default_factory=dict)
    #: Step id, or name of a model with outputs to write → the number of times that one of its blobs could not be read.
    retries: dict[str, int] = field(default_factory=dict)
    written: dict[str, list[WrittenOutput]] = field(default_factory=dict)
    unwritten: dict[str, TrtbuildError] = field(default_factory=dict)
    stages: frozenset[str] = frozenset(STAGES)
    #: The keys of results that plans have used, and that an interrupted build did not publish, because a check was missing.
    unpublished_keys: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """Whether all steps of `stages` are hits now, and nothing failed."""
        all_done = all(is_done(plan, self.stages) for plan in self.plans.values())
        return all_done and not (self.failed or self.unwritten)

    @property
    def not_begun(self) -> int:
        """The number of steps that did not start because another step failed, although they do not depend on it."""
        count = 0
        for plan in self.plans.values():
            dependents: set[str] = set()
            for step in plan.steps.values():
                if step.id in self.failed or not dependents.isdisjoint(step.producers):
                    dependents.add(step.id)
                elif self.failed and step.verdict == "run" and step.id not in self.ran and step.stage in self.stages:
                    count += 1
        return count

    def note_conversions(self, plan: ModelPlan, partition_run: StepRun) -> None:
        """Add to `ran` the convert steps whose work the partition step has done.

        `plan` is the model's first plan after the run of the partition step.
        """
        durations_s = dict(partition_run.conversions)
        reason = Reason("new", "the partition step converted it to ask the parser")
        for step in plan.steps.values():
            if step.stage == "convert" and step.key in durations_s and step.record is not None:
                duration_s = durations_s.pop(step.key)
                ran = replace(partition_run, record=step.record, duration_s=duration_s, conversions={})
                self.ran[step.id] = (reason, ran)


class Interrupted(KeyboardInterrupt):
    """A build was interrupted. `unsent` is the number of records that were not yet sent to a remote cache.

    ``trtbuild cache push`` sends these records, but later builds do not.
    """

    def __init__(self, outcome: Outcome, unsent: int = 0) -> None:
        super().__init__()
        self.outcome = outcome
        self.unsent = unsent


def is_done(plan: ModelPlan, stages: Collection[str] = STAGES) -> bool:
    """Whether all steps of a model that belong to `stages` are hits."""
    return all(step.verdict == "hit" for step in plan.steps.values() if step.stage in stages)
