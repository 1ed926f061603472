"""The context and the result of a worker's task, and the job that writes ``.pt2`` files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.core.model.comparisons import Report
from trtbuild.core.model.precisions import ComputedOperator
from trtbuild.core.recipes.record import Output
from trtbuild.store.local.local import LocalStore


@dataclass(frozen=True)
class Context:
    """The resources of a task: the local store, the project's directory, and the directory of timing caches (`timings`).

    If `timings` is None, timing caches are not kept. `announce` passes the outputs of a task to the driver before the task
    has checked them. Afterwards, the task must return the same outputs, or fail.
    """

    store: LocalStore
    project: Path
    timings: Path | None = None
    announce: Callable[[Mapping[str, Output]], None] = lambda outputs: None


@dataclass(frozen=True)
class PT2Job:
    """The job of writing a package's ``.pt2`` files. `index` is the SHA-256 of the package's index, a blob.

    Modules of custom operators are imported from the folders `roots`."""

    index: str
    roots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """A conversion to ONNX that a partition step has made: its duration in seconds, and its record as JSON text."""

    duration_s: float
    record: str


@dataclass(frozen=True)
class Result:
    """The result of a task. `outputs` maps names to blobs in the store.

    `observations` are the dependencies of user code, as pairs of recipe part and observed value. `uncacheable` is the
    reason why the result must not be reused. `conversions` maps keys to the conversions that a partition step has made.
    `statistics` come from an engine's compiler or a calibration, and `report` from a comparison. `computed` are the types
    in which operators compute.
    """

    outputs: Mapping[str, Output] = field(default_factory=dict)
    observations: tuple[tuple[Any, Any], ...] = ()
    uncacheable: str | None = None
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    statistics: Mapping[str, Any] | None = None
    report: Report | None = None
    computed: tuple[ComputedOperator, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reply(Result):
    """A result, the duration and the printed log of the task, and the worker's memory peak."""

    duration_s: float
    log: str
    peak_rss_bytes: int
