"""The events of a build: one dataclass for each kind of line of ``build --events``.

`at_s`: seconds since the build started, by a clock that is never set back. The first event is `BuildStarted`. The last
is `BuildFinished`, unless the process was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trtbuild.core.planning.graph import Reason, Stage, Verdict
from trtbuild.core.values.codec import encode, optional
from trtbuild.driver.answers.documents import ErrorEntry, Totals
from trtbuild.store.layers.remote_statistics import RemoteStatistics


@dataclass(frozen=True, kw_only=True)
class BuildStarted:
    """A build has started. `started`: the time (UTC). `builder`: the user and the machine. `trtbuild`: the version."""

    event: Literal["build_started"] = "build_started"
    schema: Literal["trtbuild.events/1"] = "trtbuild.events/1"
    at_s: float = 0.0
    started: str
    trtbuild: str
    builder: str


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step in a plan. `producers`: the ids of the steps whose outputs it reads.

    `source` and the members after it describe the result of a hit: where its record is from, who built it and when, the
    seconds that the step took then, and the bytes of its outputs.
    """

    id: str
    stage: Stage
    partition: str
    target: str | None
    verdict: Verdict
    reason: Reason
    key: str | None
    producers: Sequence[str]
    source: str | None
    builder: str | None
    finished: str | None
    saved_s: float
    output_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The JSON of the fields, made faster than by `codec.encode`, because a plan may have thousands of steps."""
        reason = {"code": self.reason.code, "text": self.reason.text, "changed": encode(self.reason.changed)}
        return {**vars(self), "producers": list(self.producers), "reason": reason}


@dataclass(frozen=True, kw_only=True)
class ModelPlanned:
    """A model was planned. `steps`: the steps that are new, or that differ from the previous plan of this model.

    `removed`: the steps that only the previous plan has. For example, a plan has one engine step for each target until the
    partitions are known. The next plan has the real engine steps.
    """

    event: Literal["model_planned"] = "model_planned"
    at_s: float
    model: str
    steps: Sequence[PlannedStep]
    removed: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ExecutionStarted:
    """The build begins to run steps, at most `jobs` at once."""

    event: Literal["execution_started"] = "execution_started"
    at_s: float
    jobs: int


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A step has started. `worker`: the lane (the row of the timeline) that shows this step."""

    event: Literal["step_started"] = "step_started"
    at_s: float
    id: str
    worker: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class StepFinished:
    """A step has finished: this build has run it (``run``), or another build has run it meanwhile (``hit``).

    `source`: ``built``, or where the record of the other build is from: ``local`` or a remote's name. `worker`: the lane.
    `conversions`: key of a convert step → the seconds of its conversion, if a partition step has made the conversion.
    `uncacheable`: why the result was not cached. `farm_worker`: the Dask worker that ran the step.
    """

    event: Literal["step_finished"] = "step_finished"
    at_s: float
    id: str
    worker: str
    verdict: Literal["run", "hit"]
    source: str
    key: str
    duration_s: float
    peak_rss_bytes: int | None
    output_bytes: int
    builder: str | None
    conversions: Mapping[str, float] = field(default_factory=dict)
    uncacheable: str | None = optional()
    farm_worker: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class StepFailed:
    """A step has failed."""

    event: Literal["step_failed"] = "step_failed"
    at_s: float
    id: str
    worker: str
    error: ErrorEntry


@dataclass(frozen=True, kw_only=True)
class PhaseStarted:
    """Work that is not a step begins, for example planning, or writing a model's outputs."""

    event: Literal["phase_started"] = "phase_started"
    at_s: float
    name: str


@dataclass(frozen=True, kw_only=True)
class PhaseFinished:
    """A phase has ended."""

    event: Literal["phase_finished"] = "phase_finished"
    at_s: float
    name: str
    succeeded: bool


@dataclass(frozen=True, kw_only=True)
class OutputReady:
    """An output of a model is up to date. `written`: whether this build has changed its files."""

    event: Literal["output_ready"] = "output_ready"
    at_s: float
    model: str
    kind: str
    path: str
    written: bool


@dataclass(frozen=True, kw_only=True)
class BuildWarning:
    """A warning of the build."""

    event: Literal["warning"] = "warning"
    at_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class BuildFinished:
    """The build has ended.

    `status`: ``done``, ``failed`` (a step, an output or a comparison failed), ``error`` (an error, for example in a
    manifest, stopped the whole build) or ``interrupted``.
    """

    event: Literal["build_finished"] = "build_finished"
    at_s: float
    status: Literal["done", "failed", "error", "interrupted"]
    totals: Totals
    errors: Sequence[ErrorEntry]
    remotes: Sequence[RemoteStatistics]


Event = (
    BuildStarted
    | ModelPlanned
    | ExecutionStarted
    | StepStarted
    | StepFinished
    | StepFailed
    | PhaseStarted
    | PhaseFinished
    | OutputReady
    | BuildWarning
    | BuildFinished
)

#: Value of the member ``event`` → class of the event.
KINDS: Mapping[str, type[Event]] = {
    "build_started": BuildStarted,
    "model_planned": ModelPlanned,
    "execution_started": ExecutionStarted,
    "step_started": StepStarted,
    "step_finished": StepFinished,
    "step_failed": StepFailed,
    "phase_started": PhaseStarted,
    "phase_finished": PhaseFinished,
    "output_ready": OutputReady,
    "warning": BuildWarning,
    "build_finished": BuildFinished,
}
