"""The context of a worker's task, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.core.model.comparisons import Report
from trtbuild.core.recipes.record import Output
from trtbuild.store.local.local import LocalStore


@dataclass(frozen=True)
class Context:
    """The local store, the project's directory, and the directory of timing caches (None: they are not kept)."""

    store: LocalStore
    project: Path
    timings: Path | None = None


@dataclass(frozen=True)
class PT2Job:
    """Write the ``.pt2`` files of the package with the index `index`, a blob's SHA-256."""

    index: str


@dataclass(frozen=True)
class Conversion:
    """A conversion that a partition step made: the JSON text of its record, and its duration in seconds."""

    duration_s: float
    record: str


@dataclass(frozen=True)
class Result:
    """The result of a task: its `outputs` in the store, by name.

    `observations` are the dependencies that a trace observed, as pairs: the recipe part of the dependency, and the observed
    value. `uncacheable` is the reason why a trace must not be reused. `conversions` are by key. `statistics` are from a
    compiler, and `report` is from a verification.
    """

    outputs: Mapping[str, Output] = field(default_factory=dict)
    observations: tuple[tuple[Any, Any], ...] = ()
    uncacheable: str | None = None
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    statistics: Mapping[str, Any] | None = None
    report: Report | None = None


@dataclass(frozen=True, kw_only=True)
class Reply(Result):
    """A result, and the worker's duration, printed log and memory peak."""

    duration_s: float
    log: str
    peak_rss_bytes: int
