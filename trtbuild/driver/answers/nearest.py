"""Finds the record that is most similar to a step that this project has never built, for `trtbuild why`.

The local cache may have records of another machine or another checkout. The parts that differ say why none of them is a
hit.

Rules
1. Only records of the same stage count that share more than half of the parts. For a trace they also have the same source,
   for an engine the same target, and for a package the same model.
2. The record that shares the most parts is the nearest. If several share as many, the last written one counts.
3. The search is bounded: at most `MOST_ENTRIES` entries of the cache are read, the newest first.
4. The answer is only for people. An entry that cannot be read or is not trusted is left out.
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
    """The nearest record of each of these steps that was never built here, by step id."""
    wanted = {step.id: step.recipe for step in steps if step.reason.code == "new" and step.recipe is not None}
    if not wanted:
        return {}
    best: dict[str, tuple[int, Record]] = {}
    with contextlib.suppress(StoreUnavailable):  # rule 4
        for record in newest_records(store, {recipe.stage for recipe in wanted.values()}, MOST_ENTRIES):
            for step, recipe in wanted.items():
                shared = _shared_parts(record.recipe, recipe)
                if shared > best.get(step, (len(recipe.parts) // 2, record))[0]:
                    best[step] = (shared, record)
    return {step: _describe(record, wanted[step]) for step, (_, record) in best.items()}


def _shared_parts(found: Recipe, wanted: Recipe) -> int:
    """The number of equal parts; 0 for a record that does not count (rule 1)."""
    if found.stage != wanted.stage:
        return 0
    parts = {name: encode(value) for name, value in found.parts}
    shared = {name for name, value in wanted.parts if parts.get(name) == encode(value)}
    required = _SAME_PART.get(wanted.stage)
    return len(shared) if required is None or required in shared else 0


def _describe(record: Record, wanted: Recipe) -> NearestRecord:
    builder, finished = (record.provenance.get(name) for name in ("builder", "finished"))
    return NearestRecord(
        key=record.recipe.key,
        builder=_visible(builder) if isinstance(builder, str) else None,
        finished=_visible(finished) if isinstance(finished, str) else None,
        changed=[
            replace(change, part=_visible(change.part), was=_visible(change.was))
            for change in explained_changes(record.recipe, wanted)
        ],
    )


def _visible(text: str) -> str:
    """A text that another machine may have written, without the characters that control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
