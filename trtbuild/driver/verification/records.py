"""Records of verifications in the store, and the entries of documents about them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.model import verification
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.configuration.builder import builder
from trtbuild.errors import BlobMissing, EntryCorrupt, RecordUntrusted

Document = dict[str, Any]


@dataclass(frozen=True)
class Labels:
    """The names for documents: profiles and dims by name, files relative to the project."""

    profiles: Sequence[str]
    dims: Sequence[str]
    project: Path

    def point(self, point: Mapping[str, Any]) -> Document:
        return {
            "profile": self.profiles[int(point["profile"])],
            "which": point["which"],
            "dims": dict(zip(self.dims, point["sizes"], strict=True)),
            "seed": point["seed"],
            "zeros": point["zeros"],
        }


def status(report: Mapping[str, Any]) -> str:
    if any(True for _ in verification.failures(report)):
        return "wrong"
    unchecked = not report["partitions"] or any(entry["status"] == "unchecked" for entry in report["partitions"])
    return "unchecked" if unchecked else "right"


def known(store: Store, recipe: Recipe) -> tuple[Record | None, Document | None]:
    """Return the record and report of an earlier verification; (None, None) if there is no valid one."""
    with contextlib.suppress(BlobMissing, EntryCorrupt, RecordUntrusted, KeyError, TypeError, ValueError):
        record = store.get_record(recipe.key, recipe)
        if record is not None and record.recipe.same_as(recipe):
            report = json.loads(store.get_bytes(record.outputs["report"].sha256))
            if status(report) != "wrong":
                return record, {**report, "worst_input": None}  # that file is on the machine that ran it
    return None, None


def keep(store: Store, recipe: Recipe, report: Document) -> Record:
    """Store the report of a successful verification, and return its record."""
    data = json.dumps({**report, "worst_input": None}, sort_keys=True).encode()
    made = {"finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "builder": builder()}
    return store.put_record(Record(recipe, {"report": store.put_bytes(data)}, made), replace=True)


def with_tf32_hints(cuts: Sequence[Document], tf32: bool | None) -> list[Document]:
    """Return the entries of a model, with a ``hint`` where TF32 may be the reason of a float32 engine's error.

    Engines whose conversion is wrong get no hint. `tf32` is whether the engines were built with TF32; None if unknown.
    """
    wrong = {name for cut in cuts if cut["by"] != "engine" and cut["status"] == "wrong" for name in cut["targets"]}

    def hinted(each: Document, cut: Document) -> Document:
        in_float32 = each["precision"] == "float32"
        hint = verification.tf32_hint(each, verification.tolerance_of(each, cut), tf32) if in_float32 else None
        return each if hint is None else {**each, "hint": hint}

    return [
        cut
        if cut["by"] != "engine" or not wrong.isdisjoint(cut["targets"])
        else {
            **cut,
            "partitions": [hinted(each, cut) for each in cut["partitions"]],
            "whole": hinted(cut["whole"], cut),
        }
        for cut in cuts
    ]


def entry(
    report: Document,
    record: Record | None,
    labels: Labels,
    targets: Sequence[str],
    toolchain: str,
    plans: Mapping[str, Mapping[str, str]],
) -> Document:
    """Return the entry of one comparison in ``trtbuild.verify/1``.

    `record` is the record of the report, if there is one. `plans` are the SHA-256 of engines by target and partition.
    """

    def named(found: Mapping[str, Any]) -> Document:
        worst = found["worst"]
        return {**found, "worst": labels.point(worst) if worst is not None else None}

    def plans_of(part: str) -> dict[str, str]:
        return {target: of_target[part] for target, of_target in plans.items() if part in of_target}

    worst = report["worst_input"]
    made = record.provenance if record is not None else {}
    return {
        "by": report["runner"],
        "against": report.get("against", "PyTorch"),
        "targets": list(targets),
        "toolchain": toolchain,
        "status": status(report),
        "tolerance": report["tolerance"],
        "points": [labels.point(point) for point in report["points"]],
        "partitions": [{**named(part), "plans": plans_of(part["partition"])} for part in report["partitions"]],
        "whole": named(report["whole"]),
        "lowered": named(report["lowered"]),
        "worst_input": os.path.relpath(worst, labels.project) if worst else None,
        "versions": report["versions"],
        "finished": made.get("finished"),
        "builder": made.get("builder"),
    }
