"""Records of comparisons in the store, and the entries about comparisons in documents."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from trtbuild.core.model.comparisons import Report
from trtbuild.core.model.verification import Point
from trtbuild.core.model.verification_messages import tf32_hint
from trtbuild.core.model.verified import (
    CutEntry,
    NamedPoint,
    PartitionEntry,
    WholeEntry,
    partition_entry,
    whole_entry,
)
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.codec import decode, encode
from trtbuild.driver.configuration.builder import time_and_builder
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted

_Entry = TypeVar("_Entry", WholeEntry, PartitionEntry)


@dataclass(frozen=True)
class Labels:
    """The names of profiles and dims for documents, and the directory to which paths in documents are relative."""

    profiles: Sequence[str]
    dims: Sequence[str]
    project: Path

    def point(self, point: Point) -> NamedPoint:
        return NamedPoint(
            profile=self.profiles[point.profile],
            which=point.which,
            dims=dict(zip(self.dims, point.sizes, strict=True)),
            seed=point.seed,
            zeros=point.zeros,
        )

    def point_or_none(self, point: Point | None) -> NamedPoint | None:
        return None if point is None else self.point(point)


def find_record(store: Store, recipe: Recipe) -> tuple[Record | None, Report | None]:
    """Return the record and the report of an earlier comparison; (None, None) without a valid record."""
    invalid = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
    with contextlib.suppress(BlobMissing, EntryCorrupt, RecordUntrusted, *invalid):
        record = store.get_record(recipe.key, recipe)
        if record is not None and record.recipe.same_as(recipe):
            report = decode(Report, json.loads(store.get_bytes(record.outputs["report"].sha256)))
            if report.status != "wrong":
                # the file of the worst inputs exists only on the machine that compared
                return record, replace(report, worst_input=None)
    return None, None


def store_record(store: Store, recipe: Recipe, report: Report) -> Record:
    """Store the report of a comparison without a wrong result, and return its record."""
    data = json.dumps(encode(replace(report, worst_input=None)), sort_keys=True).encode()
    return store.put_record(Record(recipe, {"report": store.put_bytes(data)}, time_and_builder()), replace=True)


def add_tf32_hints(cuts: Sequence[CutEntry], tf32: bool | None) -> list[CutEntry]:
    """Return `cuts`, with a hint where TF32 may be the cause of a float32 engine's error.

    Each of `cuts` is one comparison, of conversions or of engines. Engines get no hint if the conversions of their target
    are wrong. `tf32` is whether the engines were built with TF32, or None if unknown.
    """
    wrong_targets = {name for cut in cuts if cut.by != "engine" and cut.status == "wrong" for name in cut.targets}

    def add_hint(entry: _Entry) -> _Entry:
        hint = tf32_hint(entry, tf32)
        return entry if hint is None else replace(entry, hint=hint)

    return [
        cut
        if cut.by != "engine" or not wrong_targets.isdisjoint(cut.targets)
        else replace(cut, partitions=[add_hint(entry) for entry in cut.partitions], whole=add_hint(cut.whole))
        for cut in cuts
    ]


def comparison_entry(
    report: Report,
    labels: Labels,
    *,
    targets: Sequence[str],
    toolchain: str,
    plans: Mapping[str, Mapping[str, str]],
    machine: Mapping[str, str],
    provenance: Mapping[str, object],
    key: str | None = None,
    recorded: bool = False,
    worker: str | None = None,
) -> CutEntry:
    """Return the entry of one comparison.

    `plans` maps target → partition → SHA-256 of the engine. `provenance` has ``finished`` and ``builder``, if they are
    known. `key` is the key of the record; a package without a project has no record. `recorded` is whether the report
    comes from the record. `worker` is the name of the Dask worker that compared, or None.
    """

    def plans_of(part: str) -> dict[str, str]:
        return {target: of_target[part] for target, of_target in plans.items() if part in of_target}

    worst = report.worst_input
    return CutEntry(
        by=report.runner,
        against=report.against,
        targets=list(targets),
        toolchain=toolchain,
        status=report.status,
        tolerance=report.tolerance,
        points=[labels.point(point) for point in report.points],
        partitions=[
            partition_entry(found, labels.point_or_none(found.worst), plans_of(found.partition), recorded=recorded)
            for found in report.partitions
        ],
        whole=whole_entry(report.whole, labels.point_or_none(report.whole.worst), recorded=recorded),
        lowered=whole_entry(report.lowered, labels.point_or_none(report.lowered.worst), recorded=recorded),
        worst_input=os.path.relpath(worst, labels.project) if worst else None,
        versions=report.versions,
        finished=_text_or_none(provenance.get("finished")),
        builder=_text_or_none(provenance.get("builder")),
        verdict="hit" if recorded else "run",
        key=key,
        machine=dict(machine),
        float_error=report.float_error,
        worker=worker,
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
