"""What came of a build, as values: plans, runs, failures, and the outputs that were written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trtbuild.core.planning.graph import STAGES, ModelPlan, Reason
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.record import Record
from trtbuild.errors import TrtbuildError


@dataclass(frozen=True)
class Ran:
    """What running a step led to. `conversions` are keys of convert steps that the partition step did on its way."""

    record: Record
    duration_s: float
    source: str = "built"
    uncacheable: str | None = None
    conversions: Mapping[str, float] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    log: str = ""
    peak_rss_bytes: int = 0


@dataclass(frozen=True)
class Written:
    """One output of one model, and whether its files were written just now."""

    model: str
    kind: str
    path: str
    changed: bool


@dataclass
class Outcome:
    """The last plan of each model, what was run (by step id) and what failed; and by model the outputs that were
    brought up to date, or why they could not be. Steps of other stages than `stages` are not run."""

    plans: dict[str, ModelPlan]
    ran: dict[str, tuple[Reason, Ran]] = field(default_factory=dict)
    failed: dict[str, tuple[Reason, TrtbuildError]] = field(default_factory=dict)
    #: Step id, or model, → how often a blob that was needed could not be read.
    mended: dict[str, int] = field(default_factory=dict)
    written: dict[str, list[Written]] = field(default_factory=dict)
    unwritten: dict[str, TrtbuildError] = field(default_factory=dict)
    stages: frozenset[str] = frozenset(STAGES)

    @property
    def ok(self) -> bool:
        done = all(is_done(plan, self.stages) for plan in self.plans.values())
        return done and not (self.failed or self.unwritten)

    @property
    def not_begun(self) -> int:
        """How many steps could have been run and were not, because another failed that they do not need."""
        count = 0
        for plan in self.plans.values():
            below: set[str] = set()
            for step in plan.steps.values():
                if step.id in self.failed or not below.isdisjoint(step.after):
                    below.add(step.id)
                elif self.failed and step.verdict == "run" and step.id not in self.ran and step.stage in self.stages:
                    count += 1
        return count


def is_done(plan: ModelPlan, stages: Collection[str] = STAGES) -> bool:
    """Whether nothing has to run for a model, as far as `stages` go."""
    return all(step.verdict == "hit" for step in plan.steps.values() if step.stage in stages)
