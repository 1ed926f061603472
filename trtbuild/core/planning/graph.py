"""The build graph: steps, what they are called, and what was decided about each; and the plan of a model, which is all
its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.packaging import Contents
from trtbuild.core.planning.jobs import StepJob
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.recipe import Change, Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.encoding import Value

Stage = Literal["trace", "lower", "partition", "convert", "engine", "package"]
STAGES: tuple[Stage, ...] = ("trace", "lower", "partition", "convert", "engine", "package")


def stages_until(last: str | None) -> frozenset[str]:
    """The stages up to `last` and with it; all without one."""
    return frozenset(STAGES if last is None else STAGES[: [*STAGES].index(last) + 1])  # type: ignore[arg-type]


Verdict = Literal["hit", "run", "failed", "skipped", "unknown"]
ReasonCode = Literal["recorded", "new", "changed", "evicted", "untrusted", "corrupt", "forced", "uncacheable"]


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is; made where the verdict is made."""

    code: ReasonCode
    text: str
    changed: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "text": self.text, "changed": [change.to_json() for change in self.changed]}


def step_id(model: str, stage: Stage, part: str = "", target: str = "") -> str:
    """``vit/engine/encoder.layers.3@ada``."""
    return f"{model}/{stage}" + (f"/{part}" if part else "") + (f"@{target}" if target else "")


@dataclass(frozen=True)
class Step:
    """One step of one model, and the verdict on it.

    `recipe` is None as long as an earlier step has to run first (verdict ``unknown``). `job` is what a worker is told
    when the step runs; a package has none. `after` are the ids of the steps whose outputs it consumes. `refused` is
    a record that is there and cannot be gone by: whoever looks again before the step runs takes it for no other.
    """

    id: str
    model: str
    stage: Stage
    verdict: Verdict
    reason: Reason
    target: str | None = None
    recipe: Recipe | None = None
    record: Record | None = None
    job: StepJob | None = None
    after: tuple[str, ...] = ()
    source: str | None = None
    refused: Record | None = None

    @property
    def key(self) -> str | None:
        return self.recipe.key if self.recipe else None


@dataclass
class ModelPlan:
    """The steps of one model by id, in graph order, and what is known of its results."""

    model: Model
    shapes: ShapePlan
    steps: dict[str, Step] = field(default_factory=dict)
    declared: tuple[tuple[str, Value], ...] = ()
    observations: tuple[Observation, ...] = ()
    #: What the package step puts together, once all engines have keys.
    contents: Contents | None = None
    #: Digests of blobs that a weights file provides.
    file_weights: frozenset[str] = frozenset()

    @property
    def package(self) -> Step | None:
        return self.steps.get(step_id(self.model.name, "package"))

    def run_again(self, step: Step, reason: Reason) -> Step:
        """Make a run of a hit. Its record stays: recipes below follow from it, and running it again leaves the same."""
        changed = replace(step, verdict="run", reason=reason, source=None)
        self.steps[step.id] = changed
        return changed
