"""The verdicts on single steps, each with its reason.

Rules
1. The whole recipe in the record of a hit must be equal to the wanted recipe, not only the key. A record with another
   recipe, or without one of the `REQUIRED_OUTPUTS`, is a miss (``corrupt``).
2. Recipes of later steps follow from small documents among a step's outputs. If such a document cannot be read, the step
   runs again.
3. A step whose key has no entry is ``new`` if this project has not built the step before. Otherwise it is ``changed``, with
   the parts of the recipe that differ from the last build. If no part differs, it is ``evicted``. An entry that must not be
   used gives another reason, such as ``untrusted``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, Reason, Stage, Step, step_id
from trtbuild.core.planning.jobs import StepJob
from trtbuild.core.planning.lookups import Lookups
from trtbuild.core.recipes import chain
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import ABSENT, Change, Recipe, changes
from trtbuild.core.recipes.record import Record
from trtbuild.errors import BlobMissing, EntryCorrupt

#: Stage → the outputs that each of its records must have.
REQUIRED_OUTPUTS: Mapping[Stage, Sequence[str]] = {
    "calibrate": ("quantizers",),
    "trace": ("program", "graph", "modules", "interface", "weights"),
    "lower": ("program", "graph", "modules"),
    "partition": ("partitions",),
    "convert": ("onnx", "origins"),
    "engine": ("plan", "layers"),
    "package": ("index", "names"),
}

RECORDED = Reason("recorded", "nothing that it depends on has changed")
EVICTED = Reason("evicted", "its outputs are needed, and are no longer in the cache")

#: Parts of a package's recipe that ``reference: true`` adds, because such a package also runs without engines.
_FROM_REFERENCE = re.compile(r"weights\.|partitions\.[^.]+\.programs\.")

T = TypeVar("T")


class Verdicts:
    """Adds steps to `plan`, each with its verdict."""

    def __init__(self, plan: ModelPlan, lookups: Lookups) -> None:
        self.plan = plan
        self._lookups = lookups

    def add_step(
        self,
        stage: Stage,
        recipe: Recipe,
        job: StepJob | None,
        *,
        partition: str = "",
        target: str = "",
        suffix: str = "",
        producers: tuple[str, ...] = (),
        hit_reason: Reason = RECORDED,
        names: Callable[[], Mapping[str, str]] = dict,
    ) -> Step:
        """Add the step with this recipe: a hit, with the reason `hit_reason`, or a run.

        `suffix` is at the end of the step's id if the step has no target. `names` returns a mapping from parts of the
        recipe to the names that people use for them, such as from ``weights.w0`` to ``layers.2.weight``."""
        identifier = step_id(self.plan.model.name, stage, partition, target or suffix)
        record = None
        run_reason = self._lookups.why_forced_to_run(identifier, recipe.key)
        if run_reason is None:
            record = self._lookups.record_of(recipe)
            if record is None:
                run_reason = self._unusable(recipe) or self._why_missing(identifier, recipe, names)
            else:
                run_reason = _fault_of(record, stage, recipe)
        is_hit = run_reason is None
        step = Step(
            id=identifier,
            model=self.plan.model.name,
            stage=stage,
            verdict="hit" if is_hit else "run",
            reason=run_reason or hit_reason,
            target=target or None,
            recipe=recipe,
            record=record if is_hit else None,
            job=job,
            producers=producers,
            source=self._lookups.source_of(recipe.key) if is_hit else None,
        )
        self.plan.steps[identifier] = step
        return step

    def read_output(self, step: Step, output: str, parse: Callable[[bytes], T]) -> T | None:
        """A document among a step's outputs, parsed by `parse`.

        None if the step has no record, or if the document cannot be read. In the second case, the step becomes a run
        (rule 2)."""
        if step.record is None:
            return None
        try:
            return parse(self._lookups.blob(step.record.outputs[output].sha256))
        except BlobMissing:
            self.cannot_use(step, EVICTED)
        except (EntryCorrupt, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            self.cannot_use(step, Reason("corrupt", f"its output `{output}` is damaged"))
        return None

    def cannot_use(self, step: Step, reason: Reason) -> Step:
        """Change a hit into a run without a record, because the hit's record must not be used."""
        self.plan.steps[step.id] = replace(self.plan.run_again(step, reason), record=None, refused_record=step.record)
        return self.plan.steps[step.id]

    def _unusable(self, recipe: Recipe) -> Reason | None:
        """The reason why the entry under the recipe's key must not be used, or None.

        The record of a step that runs user code is found through a chain of links (`core.recipes.chain`). So the reason may
        also be that the next link is not trusted."""
        reason = self._lookups.why_unusable(recipe.key)
        if reason is None and recipe.stage in USER_CODE_STAGES:
            link_reason = self._lookups.why_unusable(chain.link_of(recipe).key)
            reason = link_reason if link_reason is not None and link_reason.code == "untrusted" else None
        return reason

    def _why_missing(self, identifier: str, recipe: Recipe, names: Callable[[], Mapping[str, str]]) -> Reason:
        last = self._lookups.last_recipe(identifier)
        if last is None:
            return Reason("new", "it was not built in this project before")
        changed = explained_changes(last, recipe)
        if not changed:
            return Reason("evicted", "it was built before, but the cache no longer has it")
        name_of_part = names()
        changed = tuple(_add_name(change, name_of_part) for change in changed)
        changed_names = ", ".join(change.name or change.part for change in changed[:3]) + (
            ", …" if len(changed) > 3 else ""
        )
        return Reason("changed", f"changed: {changed_names}", changed)

    def add_unknown(
        self, stage: Stage, partition: str = "", *, target: str = "", suffix: str = "", producers: tuple[str, ...]
    ) -> Step:
        """Add a step whose recipe is not known before ``producers[0]`` has run."""
        identifier = step_id(self.plan.model.name, stage, partition, target or suffix)
        reason = Reason("new", f"known when {producers[0]} has run" if producers else "")
        step = Step(identifier, self.plan.model.name, stage, "unknown", reason, target or None, producers=producers)
        self.plan.steps[identifier] = step
        return step


def _fault_of(record: Record, stage: Stage, recipe: Recipe) -> Reason | None:
    """The reason why the record under the key of `recipe` is not a hit (rule 1), or None."""
    if not record.recipe.same_as(recipe):
        return Reason("corrupt", "the record under its key has another recipe")
    missing_outputs = [name for name in REQUIRED_OUTPUTS[stage] if name not in record.outputs]
    if missing_outputs:
        return Reason("corrupt", f"its record lacks {' and '.join(missing_outputs)}")
    return None


def explained_changes(was: Recipe, now: Recipe) -> tuple[Change, ...]:
    """The differences between two recipes of a step, except parts that are unknown or follow from another difference."""
    changed = changes(was, now)
    if now.stage in USER_CODE_STAGES:
        # The chain of links ends at the dependency that has changed. So later dependencies are unknown, not changed.
        changed = tuple(change for change in changed if change.now != ABSENT or not _is_dependency(change.part))
    return _causes(changed)


def _add_name(change: Change, names: Mapping[str, str]) -> Change:
    """`change` with the name that people use for its part. ``weights.w0.sha256`` gets the name of ``weights.w0``."""
    part = change.part.removesuffix(".sha256")
    entry = ".".join(part.split(".")[:2])
    return replace(change, name=names[entry] + part[len(entry) :]) if entry in names else change


def _causes(changed: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes without those that follow from a change of a package's `reference`, which adds programs and weights."""
    if all(change.part != "reference" for change in changed):
        return changed
    return tuple(
        change for change in changed if ABSENT not in (change.was, change.now) or not _FROM_REFERENCE.match(change.part)
    )


def _is_dependency(part: str) -> bool:
    try:
        Dependency.from_part(part)
    except ValueError:
        return False
    return True
