"""Find the record that is most similar to a step that this project has never built, for `trtbuild why`.

The local cache may have records of another machine or another checkout. The user sees the parts of the recipes that
differ, and so why the step is not a hit.

Rules
1. A record counts only if it has the stage of the step, and if more than half of the step's parts are equal in both
   recipes. The source of a calibration or a trace, the target of an engine, and the model of a package must be among the
   equal parts.
2. The record with the most equal parts is the nearest. If several records have equally many, the one that was used last is
   the nearest.
3. At most `MOST_ENTRIES` entries of the cache are read, the most recently used first.
4. An entry that cannot be read or is not trusted is left out. If the store cannot be used, the search ends with what it has
   found. These are not errors, because the answer is only a help.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.verdicts import explained_changes
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.encoding import encode
from trtbuild.driver.answers.documents import NearestRecord
from trtbuild.errors import StoreUnavailable
from trtbuild.store.collection.search import newest_records
from trtbuild.store.local.local import LocalStore

#: Rule 3.
MOST_ENTRIES = 20_000

#: Stage → the part that must be equal (rule 1).
_SAME_PART = {"calibrate": "source", "trace": "source", "engine": "target", "package": "model"}


def nearest_records(store: LocalStore, steps: Sequence[Step]) -> Mapping[str, NearestRecord]:
    """Step id → the nearest record, for those of `steps` that this project has never built."""
    recipes = {step.id: step.recipe for step in steps if step.reason.code == "new" and step.recipe is not None}
    if not recipes:
        return {}
    nearest: dict[str, Record] = {}
    # step id → the largest number of equal parts so far: a record must have more (rules 1 and 2)
    most_equal_parts = {step_id: len(recipe.parts) // 2 for step_id, recipe in recipes.items()}
    with contextlib.suppress(StoreUnavailable):  # rule 4
        for record in newest_records(store, {recipe.stage for recipe in recipes.values()}, MOST_ENTRIES):
            for step_id, recipe in recipes.items():
                count = _count_equal_parts(record.recipe, recipe)
                if count > most_equal_parts[step_id]:
                    nearest[step_id], most_equal_parts[step_id] = record, count
    return {step_id: _describe(record, recipes[step_id]) for step_id, record in nearest.items()}


def _count_equal_parts(cached: Recipe, planned: Recipe) -> int:
    """The number of equal parts; 0 if a part that must be equal differs (rule 1)."""
    if cached.stage != planned.stage:
        return 0
    parts = {name: encode(value) for name, value in cached.parts}
    equal = {name for name, value in planned.parts if parts.get(name) == encode(value)}
    required = _SAME_PART.get(planned.stage)
    return len(equal) if required is None or required in equal else 0


def _describe(record: Record, planned: Recipe) -> NearestRecord:
    builder, finished = (record.provenance.get(name) for name in ("builder", "finished"))
    return NearestRecord(
        key=record.recipe.key,
        builder=_visible(builder) if isinstance(builder, str) else None,
        finished=_visible(finished) if isinstance(finished, str) else None,
        changed=[
            replace(change, part=_visible(change.part), was=_visible(change.was))
            for change in explained_changes(record.recipe, planned)
        ],
    )


def _visible(text: str) -> str:
    """The text without characters that control a terminal. Another machine may have written it."""
    return "".join(character if character.isprintable() else "?" for character in text)
