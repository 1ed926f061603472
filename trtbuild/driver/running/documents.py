"""The documents of ``run`` and ``bench``, as ``--json`` prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.values.codec import optional
from trtbuild.driver.workers.stopwatch import Budget, Latency


@dataclass(frozen=True, kw_only=True)
class TensorSummary:
    """A tensor and a summary of its values. `nan` and `inf` are numbers of elements.

    `min`, `max` and `mean` are those of the finite values, null if there is no finite value. `source` is the file of an
    input, or ``random``. An output has no `source`.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    min: float | int | None
    max: float | int | None
    mean: float | None
    nan: int
    inf: int
    source: str | None = optional("from")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call of a package. `output` is the file with the outputs, null if they were not written.

    `computed_by` is the library that computed the reference program, null if `reference` is false."""

    schema: Literal["trtbuild.run/1"] = "trtbuild.run/1"
    ok: bool = True
    package: str
    model: str
    device: str
    reference: bool
    computed_by: str | None
    target: str | None
    profile: str | None
    dims: Mapping[str, int]
    duration_s: float
    inputs: Sequence[TensorSummary]
    outputs: Sequence[TensorSummary]
    output: str | None


@dataclass(frozen=True, kw_only=True)
class BenchPoint:
    """Measured shapes, with their label."""

    label: str
    shapes: Mapping[str, Sequence[int]]
    dims: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """The latencies of one runner (``trtbuild``, ``eager`` or ``torch.compile``) at the point with the index `point`.

    `first_s` is the duration of the first call. `count` is the number of timed calls after the warm-up.
    """

    runner: str
    point: int
    first_s: float
    count: int
    latency_ms: Latency


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The latencies of a package by shape and, if requested, those of the module from which the package was built.

    `plot` is the file with the diagram of the latencies."""

    schema: Literal["trtbuild.bench/1"] = "trtbuild.bench/1"
    ok: bool = True
    package: str
    model: str
    device: str
    device_name: str | None
    reference: bool
    computed_by: str | None
    target: str | None
    budget: Budget
    duration_s: float
    points: Sequence[BenchPoint]
    runs: Sequence[BenchRun]
    versions: Mapping[str, str]
    warnings: Sequence[str]
    plot: str | None = None
