"""What a task is given beside its job, and what comes of it, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.record import Output
from trtbuild.store.local.local import LocalStore


@dataclass(frozen=True)
class Context:
    """Where a worker works: the local store, the project's directory, and a directory of timing caches, if any."""

    store: LocalStore
    project: Path
    timings: Path | None = None


@dataclass(frozen=True)
class PT2Job:
    """Write the ``.pt2`` files of the package with the index `index`, a blob's SHA-256."""

    index: str


@dataclass(frozen=True)
class Conversion:
    """A convert step that a partition step did on its way: its record's document, and how long it took."""

    duration_s: float
    record: str


@dataclass(frozen=True)
class Result:
    """What a task left: `outputs` in the store, by name.

    `observations` are what a trace was seen to depend on (the dependency's part of a recipe, and what was seen);
    `uncacheable` says why it must not be found again. `conversions` are by key. `statistics` are a compiler's, `report` is
    that of a verification.
    """

    outputs: Mapping[str, Output] = field(default_factory=dict)
    observations: tuple[tuple[Any, Any], ...] = ()
    uncacheable: str | None = None
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    statistics: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Reply(Result):
    """A result with what its worker says of itself: time in seconds, memory at its peak, and what it printed."""

    duration_s: float
    log: str
    peak_rss_bytes: int
