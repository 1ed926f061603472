"""The contents of a report. The page has them as JSON, so ``cli/report_page/*.js`` uses the same names of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtbuild.core.planning.graph import Reason, Stage
from trtbuild.driver.answers.documents import ErrorEntry
from trtbuild.store.layers.remote_statistics import RemoteStatistics

#: ``running``: the build has not ended, or its process was killed.
Status = Literal["done", "failed", "error", "interrupted", "running"]
RowVerdict = Literal["hit", "run", "failed", "skipped", "running"]


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """A step of a build.

    * `source`: ``built``, or the origin of a hit: ``local``, or a remote's name.
    * `builder`: the user and the machine that built the result. `finished`: for a hit, the time when it was built.
    * `start_s`, `end_s`: counted from the start of the build; null if the step did not start.
    * `saved_s`: for a hit, the seconds that the step took when its result was built; otherwise 0.
    * `waited_for`: the step whose end allowed this step to start. `waited_s`: how long this step was ready before it
      started.
    * `critical`: whether this step is on the critical path.
    * `signer`: who signed the record of an engine, if keys are configured.
    * `uncacheable`: the reason why the result was not cached.
    * `worker`: the lane of this step. A lane runs one step at a time. `farm_worker`: the Dask worker that ran the step.
    """

    id: str
    model: str
    stage: Stage
    partition: str
    target: str | None
    verdict: RowVerdict
    reason: Reason
    key: str | None
    source: str | None
    builder: str | None
    finished: str | None
    start_s: float | None
    end_s: float | None
    duration_s: float
    saved_s: float
    worker: str | None
    peak_rss_bytes: int | None
    output_bytes: int
    waited_for: str | None
    waited_s: float
    critical: bool
    signer: str | None
    uncacheable: str | None
    farm_worker: str | None
    error: ErrorEntry | None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Work of a build that is not a step."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class TargetRow:
    """The totals of the engines of one model for one target. `runs`: the number of engines that this build compiled.

    `sources`, `builders` and `signers` are the different values of the engines.
    """

    model: str
    target: str
    engines: int
    runs: int
    output_bytes: int
    duration_s: float
    saved_s: float
    verdict: RowVerdict
    sources: Sequence[str]
    builders: Sequence[str]
    signers: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    """A partition of a model.

    * `reads`: the origins of the values that the partition reads: inputs, partitions, ``state`` and ``weight``.
    * `outputs`: the type of each output, such as ``float32[batch, 8]``.
    * `calls`: the number of its operator calls.
    * `modules`: module path → the number of calls from this module, or of engine layers if the calls are not known.
    * `reasons`: for a Torch partition, operator → the reason why it stays in PyTorch.
    * `types`: the types that the engine's layers read and write.
    """

    name: str
    kind: Literal["tensorrt", "torch"]
    reads: Sequence[str]
    outputs: Sequence[str]
    calls: int
    modules: Mapping[str, int]
    reasons: Mapping[str, str]
    types: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One way to divide a model into partitions, for the targets that share it.

    The rows describe the engines of the first target.
    """

    targets: Sequence[str]
    partitions: Sequence[PartitionRow]


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """An engine of a package. `size` is in bytes, and `layers` is the number of its layers."""

    model: str
    partition: str
    target: str
    size: int
    layers: int


#: A layer: index of its engine, name, type, module path, operator, types that it reads, types that it writes.
LayerRow = tuple[int, str, str, str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class PackageView:
    """The contents of a package, and its comparisons with PyTorch or onnxruntime (`Provenance.verified`).

    `signature`: the inputs and results as text. `void`: the reason why the comparisons do not count, or null.
    """

    model: str
    path: str
    precision: str
    signature: str
    cuts: Sequence[Cut]
    verified: Sequence[Mapping[str, Any]]
    void: str | None


@dataclass(frozen=True, kw_only=True)
class ChangedStep:
    """A step that differs between this build and the build before. The values of a build without the step are null.

    `change` is ``new`` or ``removed`` if only one of the builds has the step, and ``failed`` if the step has failed in at
    least one of them. Otherwise it is ``changed`` if the key differs, and ``same`` if only the verdict or size differs."""

    id: str
    change: Literal["new", "removed", "changed", "failed", "same"]
    verdict_before: str | None
    verdict_now: str | None
    seconds_before: float | None
    seconds_now: float | None
    bytes_before: int | None
    bytes_now: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences from the build before, which started at `started`. `unchanged`: the number of equal steps."""

    started: str
    status: Status
    duration_before_s: float
    duration_now_s: float
    steps: Sequence[ChangedStep]
    unchanged: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """A build, its packages, and its differences from the build before.

    `project`: the name of the project's directory. `totals`: verdict → the number of steps. `critical_s`: the total seconds
    of the steps on the critical path. `outputs`: the model, kind and path of each output. `notes`: the reasons why packages
    could not be read. `layers_left_out`: the number of layers that are not in `layers`. `benches`: the kept results of
    ``trtbuild bench`` for the models."""

    project: str
    status: Status
    started: str
    builder: str
    trtbuild: str
    duration_s: float
    jobs: int
    totals: Mapping[str, int]
    saved_s: float
    critical_s: float
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]
    outputs: Sequence[Sequence[str]]
    remotes: Sequence[RemoteStatistics]
    steps: Sequence[StepRow]
    phases: Sequence[Phase]
    targets: Sequence[TargetRow]
    packages: Sequence[PackageView]
    engines: Sequence[EngineRow]
    layers: Sequence[LayerRow]
    layers_left_out: int
    benches: Sequence[Mapping[str, Any]]
    comparison: Comparison | None
    notes: Sequence[str]
