"""Verdicts on single steps, each with the reason that it was given for.

Rules
1. A hit has a record whose recipe equals the wanted one in full, not only by key. A difference is a miss (``corrupt``),
   and so is a record without the outputs that its stage leaves.
2. Recipes below a step follow from small documents that it left. A hit whose documents cannot be read runs again.
3. What was not found is ``new`` where this project never had the step, ``evicted`` where it had it with this recipe, and
   ``changed`` with all parts that differ where it had it with another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trtbuild.core.planning.graph import ModelPlan, Reason, Stage, Step, Verdict, step_id
from trtbuild.core.planning.jobs import StepJob
from trtbuild.core.planning.lookups import Lookups
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.recipe import ABSENT, Change, Recipe, changes
from trtbuild.errors import BlobMissing, EntryCorrupt

#: Outputs that every record of a stage has.
LEAVES: Mapping[Stage, Sequence[str]] = {
    "trace": ("program", "graph", "modules", "interface", "weights"),
    "lower": ("program", "graph", "modules"),
    "partition": ("partitions",),
    "convert": ("onnx", "origins"),
    "engine": ("plan", "layers"),
    "package": ("index", "names"),
}

RECORDED = Reason("recorded", "nothing that it depends on has changed")
GONE = Reason("evicted", "what it left is needed, and no longer in the cache")

#: Parts of a package's recipe that are there or not as its `reference` says.
_FOLLOWS = re.compile(r"weights\.|partitions\.[^.]+\.programs\.")

T = TypeVar("T")


class Verdicts:
    """Adds steps to `plan`, in graph order, each with its verdict."""

    def __init__(self, plan: ModelPlan, look: Lookups) -> None:
        self.plan = plan
        self._look = look

    def look_up(
        self,
        stage: Stage,
        recipe: Recipe,
        job: StepJob | None,
        *,
        part: str = "",
        target: str = "",
        suffix: str = "",
        after: tuple[str, ...] = (),
        hit: Reason = RECORDED,
        names: Callable[[], Mapping[str, str]] = dict,
    ) -> Step:
        """The step with this recipe: a hit, for the reason `hit`, or a run. `part` is its partition; `suffix` tells two
        steps apart that no target does; `names` are what people call parts of the recipe (``weights.w0``)."""
        identifier = step_id(self.plan.model.name, stage, part, target or suffix)
        verdict: Verdict = "run"
        source = None
        reason = self._look.overruled(identifier, recipe.key)
        record = self._look.record_of(recipe) if reason is None else None
        if reason is not None:
            pass
        elif record is None:
            reason = self._unusable(recipe) or self._why_missing(identifier, recipe, names)
        elif not record.recipe.same_as(recipe):
            reason = Reason("corrupt", "the record under its key was made by another recipe")
        elif lacking := [name for name in LEAVES[stage] if name not in record.outputs]:
            reason = Reason("corrupt", f"its record lacks {' and '.join(lacking)}")
        else:
            verdict, reason, source = "hit", hit, self._look.source_of(recipe.key)
        found = record if verdict == "hit" else None
        step = Step(
            identifier,
            self.plan.model.name,
            stage,
            verdict,
            reason,
            target or None,
            recipe,
            found,
            job,
            after,
            source,
        )
        self.plan.steps[identifier] = step
        return step

    def read(self, step: Step, output: str, parse: Callable[[bytes], T]) -> T | None:
        """A document that a step left, or None: its record is not there, or it cannot be used (rule 2)."""
        if step.record is None:
            return None
        try:
            return parse(self._look.blob(step.record.outputs[output].sha256))
        except BlobMissing:
            self.cannot_use(step, GONE)
        except (EntryCorrupt, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
            self.cannot_use(step, Reason("corrupt", f"its output `{output}` is damaged"))
        return None

    def cannot_use(self, step: Step, reason: Reason) -> Step:
        """Make a run of a hit whose results cannot be gone by."""
        self.plan.steps[step.id] = replace(self.plan.run_again(step, reason), record=None, refused=step.record)
        return self.plan.steps[step.id]

    def _unusable(self, recipe: Recipe) -> Reason | None:
        """Why what is there under a key does not count; or, of a trace, the link that would lead further."""
        reason = self._look.unusable(recipe.key)
        if reason is None and recipe.stage == "trace":
            link = self._look.unusable(Recipe("trace-link", recipe.version, recipe.parts).key)
            reason = link if link is not None and link.code == "untrusted" else None
        return reason

    def _why_missing(self, identifier: str, recipe: Recipe, names: Callable[[], Mapping[str, str]]) -> Reason:
        last = self._look.last_recipe(identifier)
        if last is None:
            return Reason("new", "it was not built in this project before")
        found = changes(last, recipe)
        if recipe.stage == "trace":
            # the chain ended where the change is, or where a link is gone: what a trace would look at behind that is
            # not known, not changed
            found = tuple(change for change in found if change.now != ABSENT or not _is_dependency(change.part))
        found = _causes(found)
        if not found:
            return Reason("evicted", "it was built before, but the cache no longer has it")
        known = names()
        found = tuple(_called(change, known) for change in found)
        named = ", ".join(change.name or change.part for change in found[:3]) + (", …" if len(found) > 3 else "")
        return Reason("changed", f"changed: {named}", found)

    def unknown(
        self, stage: Stage, part: str = "", *, target: str = "", suffix: str = "", after: tuple[str, ...]
    ) -> Step:
        """A step whose recipe is known only when the first of `after` has run."""
        identifier = step_id(self.plan.model.name, stage, part, target or suffix)
        reason = Reason("new", f"known when {after[0]} has run" if after else "")
        step = Step(identifier, self.plan.model.name, stage, "unknown", reason, target or None, after=after)
        self.plan.steps[identifier] = step
        return step


def _called(change: Change, names: Mapping[str, str]) -> Change:
    """The change with the name that people have for its part. A digest is the thing itself."""
    part = change.part.removesuffix(".sha256")
    whole = ".".join(part.split(".")[:2])
    return replace(change, name=names[whole] + part[len(whole) :]) if whole in names else change


def _causes(found: tuple[Change, ...]) -> tuple[Change, ...]:
    """Without what only follows from another change: programs and weights come and go with a package's reference."""
    if all(change.part != "reference" for change in found):
        return found
    return tuple(
        change for change in found if ABSENT not in (change.was, change.now) or not _FOLLOWS.match(change.part)
    )


def _is_dependency(part: str) -> bool:
    try:
        Dependency.from_part(part)
    except ValueError:
        return False
    return True
