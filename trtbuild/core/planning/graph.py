"""The build graph: steps with their ids and verdicts, and the plan of a model, which consists of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from trtbuild.core.model.shapes import ShapePlan, Ties
from trtbuild.core.model.spec import Model
from trtbuild.core.packages.contents import PackageContents
from trtbuild.core.planning.jobs import StepJob
from trtbuild.core.recipes.declared import Declared, UserCodeStage
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.recipe import Change, Recipe
from trtbuild.core.recipes.record import Output, Record

Stage = Literal["calibrate", "trace", "lower", "partition", "convert", "engine", "package"]
STAGES: tuple[Stage, ...] = ("calibrate", "trace", "lower", "partition", "convert", "engine", "package")
#: The stages that run user code. Only models with ``quantize:`` have a calibrate step.
USER_CODE_STAGES: tuple[UserCodeStage, ...] = ("calibrate", "trace")


def stages_until(last: str | None) -> frozenset[str]:
    """The stages up to `last`, inclusive; all stages if `last` is None."""
    return frozenset(STAGES if last is None else STAGES[: [*STAGES].index(last) + 1])  # type: ignore[arg-type]


#: A plan has the verdicts ``hit`` (a record has the results), ``run``, and ``unknown`` (an earlier step has to run first).
#: After a build, a step can also be ``failed``, or ``skipped`` (it did not run).
Verdict = Literal["hit", "run", "failed", "skipped", "unknown"]
#: ``recorded`` is the reason of each hit. The other codes are reasons to run. An unknown step has the code ``new``.
ReasonCode = Literal["recorded", "new", "changed", "evicted", "untrusted", "corrupt", "forced", "uncacheable"]


@dataclass(frozen=True)
class Reason:
    """The reason for a verdict. `changed` has the differences from the last build.

    A difference is a part of the recipe. For a package it may also be the plan (the bytes) of an engine."""

    code: ReasonCode
    text: str
    changed: tuple[Change, ...] = ()


def step_id(model: str, stage: Stage, partition: str = "", target: str = "") -> str:
    """The id of a step, such as ``vit/engine/encoder.layers.3@ada``."""
    return f"{model}/{stage}" + (f"/{partition}" if partition else "") + (f"@{target}" if target else "")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one model, and its verdict.

    `recipe` is None as long as an earlier step has to run first (verdict ``unknown``). `job` is what a worker has to do if
    the step runs. It is None for package steps and unknown steps. `producers` are the ids of the steps whose outputs this
    step reads. `source` is the origin of a hit's record: ``local``, or a remote's name. `refused_record` is a record under
    the step's key that must not be used, even if a later lookup finds it again.
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
    producers: tuple[str, ...] = ()
    source: str | None = None
    refused_record: Record | None = None

    @property
    def key(self) -> str | None:
        return self.recipe.key if self.recipe else None


@dataclass(frozen=True)
class UserCode:
    """The declared parts of a step that runs user code (known before it runs), and its observed dependencies."""

    declared: Declared
    observations: tuple[Observation, ...]


@dataclass
class ModelPlan:
    """The steps of one model, and the facts that are known about their results."""

    model: Model
    #: The shapes that the manifest declares.
    declared_shapes: ShapePlan
    #: Step id → step, in the order of the graph.
    steps: dict[str, Step] = field(default_factory=dict)
    user_code: dict[UserCodeStage, UserCode] = field(default_factory=dict)
    #: The contents of the package. None until all engines have keys.
    contents: PackageContents | None = None
    #: Digests of the blobs that files of the project provide: the weights file, and the library of plugins.
    project_blobs: frozenset[str] = frozenset()
    #: The digest and the size of the library of the model's plugins; None if the model has no such library.
    plugin_library: Output | None = None
    #: Pairs of declared symbols (the variables for dynamic dims) that are always equal in the traced program.
    ties: Ties = ()

    @property
    def observations(self) -> Iterator[Observation]:
        """The observed dependencies of all steps that run user code."""
        return itertools.chain.from_iterable(code.observations for code in self.user_code.values())

    @property
    def shapes(self) -> ShapePlan:
        """The shapes of the traced program, in which the two symbols of each pair in `ties` are one symbol.

        Until the trace is known, these are the shapes that the manifest declares."""
        return self.declared_shapes.merge_ties(self.ties) if self.ties else self.declared_shapes

    @property
    def package(self) -> Step | None:
        return self.steps.get(step_id(self.model.name, "package"))

    def run_again(self, step: Step, reason: Reason) -> Step:
        """Change the hit `step` into a run.

        The step keeps its record, because the recipes of later steps follow from it. These recipes stay valid if the run
        gives the same outputs."""
        changed = replace(step, verdict="run", reason=reason, source=None)
        self.steps[step.id] = changed
        return changed
