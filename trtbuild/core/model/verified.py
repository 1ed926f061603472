"""The results of a verification in the form of the document ``trtbuild.verify/1`` and of ``provenance.json``.

Each class is one JSON object: its fields are the members. The members of entries that were read from a record have another
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.core.model.comparisons import (
    Compared,
    Comparison,
    FloatError,
    PartitionComparison,
    PartitionIdentity,
    Place,
    Status,
)
from trtbuild.core.model.spec import Precision
from trtbuild.core.model.verification import Runner
from trtbuild.core.values.codec import members, optional


@dataclass(frozen=True, kw_only=True)
class NamedPoint:
    """A point of a comparison: the sizes of the dynamic dimensions, and the seed of the random input values.

    `which` names the point in its profile: ``min``, ``opt``, ``max``, ``random 1``, … `dims` maps the names of the
    dimensions to sizes. `zeros`: whether some of the input values are zero."""

    profile: str
    which: str
    dims: Mapping[str, int]
    seed: int
    zeros: bool


@dataclass(frozen=True, kw_only=True)
class WholeEntry(Compared):
    """The comparison of the whole model. `hint` is a possible reason of the error, with advice."""

    worst: NamedPoint | None
    hint: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class PartitionEntry(Compared, PartitionIdentity):
    """The comparison of one partition. `place` is the place of the fault, or None if it is not known.

    `plans` maps a target to the SHA-256 of the partition's engine."""

    worst: NamedPoint | None
    place: Place | None
    plans: Mapping[str, str]
    hint: str | None = optional()


class _RecordedWhole(WholeEntry):
    """An entry that was read from a record. It keeps the order of a record's members, which is alphabetical."""

    def to_json(self) -> dict[str, Any]:
        return _json_in_record_order(self, Comparison)


class _RecordedPartition(PartitionEntry):
    def to_json(self) -> dict[str, Any]:
        return _json_in_record_order(self, PartitionComparison)


def _json_in_record_order(entry: WholeEntry | PartitionEntry, kind: type[Comparison]) -> dict[str, Any]:
    """The JSON of an entry: the fields of `kind` in alphabetical order, then all other fields."""
    by_field = members(entry)
    first = [name for name in sorted(by_field) if name in kind.__dataclass_fields__]
    return {name: by_field[name] for name in dict.fromkeys((*first, *by_field))}


def whole_entry(comparison: Comparison, worst: NamedPoint | None, *, recorded: bool) -> WholeEntry:
    """Return the entry for a comparison. `recorded`: whether the comparison was read from a record."""
    kind = _RecordedWhole if recorded else WholeEntry
    return kind(**{**vars(comparison), "worst": worst})


def partition_entry(
    comparison: PartitionComparison, worst: NamedPoint | None, plans: Mapping[str, str], *, recorded: bool
) -> PartitionEntry:
    """Return the entry for a comparison. `recorded`: whether the comparison was read from a record."""
    kind = _RecordedPartition if recorded else PartitionEntry
    return kind(**{**vars(comparison), "worst": worst, "plans": plans})


@dataclass(frozen=True, kw_only=True)
class CutEntry:
    """The comparison of a model for one cut (one way to divide the model into partitions) and one runner.

    The engines of each target have their own entry.

    * `by`, `against`: the runner of the partitions, and the library that computed the reference.
    * `targets`: the targets that share this cut; for engines, the one target whose engines ran.
    * `lowered`: the comparison of the program of the lower step, run by PyTorch.
    * `worst_input`: the path, relative to the project, of the file with the inputs at the point with the worst result.
    * `finished`, `builder`: when and where the comparison ran; null if that was not recorded.
    * `verdict`: ``hit`` if the result is from a record. `key`: the key of the record.
    * `machine`: the platform of the machine that ran the comparison. For engines, also its GPU and driver.
    * `float_error`: the error against the model without quantizers; left out for a model without quantizers.
    * `worker`: the name of the Dask worker that ran the comparison; left out if no Dask worker ran it.
    """

    by: Runner
    against: str
    targets: Sequence[str]
    toolchain: str
    status: Status
    tolerance: float
    points: Sequence[NamedPoint]
    partitions: Sequence[PartitionEntry]
    whole: WholeEntry
    lowered: WholeEntry
    worst_input: str | None
    versions: Mapping[str, str]
    finished: str | None
    builder: str | None
    verdict: Literal["hit", "run"]
    key: str | None
    machine: Mapping[str, str]
    float_error: FloatError | None = optional()
    worker: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A target whose engines were not compared, and the reason."""

    target: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """The verification of a model of a project.

    `missing` are the steps without a result, if `status` is ``missing``. `precision` is left out if `status` is ``failed``.
    `exceeds` is the reason why ``--max-error`` rejects the model; left out if it accepts the model.
    """

    model: str
    ok: bool
    status: Literal["right", "wrong", "unchecked", "missing", "failed"]
    missing: Sequence[str] = ()
    cuts: Sequence[CutEntry] = ()
    not_run: Sequence[NotRun] = ()
    precision: Precision | None = optional()
    exceeds: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class PackageEntry:
    """The verification of a package without its project. `missing` is always empty. `exceeds` is as in `ModelEntry`."""

    model: str
    ok: bool
    status: Status
    precision: str
    missing: Sequence[str] = ()
    cuts: Sequence[CutEntry]
    not_run: Sequence[NotRun]
    exceeds: str | None = optional()
