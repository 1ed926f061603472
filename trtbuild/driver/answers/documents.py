"""The ``--json`` documents of ``plan``, ``build``, ``verify``, ``why``, ``graph``, ``status``, ``affected`` and ``init``.

The fields of a dataclass are the members of a JSON object. An `optional` member is left out if it does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.model.verified import ModelEntry, PackageEntry
from trtbuild.core.planning.graph import Reason, Stage, Verdict
from trtbuild.core.recipes.recipe import Change
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.codec import optional
from trtbuild.driver.project.history import LastRun
from trtbuild.store.layers.remote_statistics import RemoteStatistics

#: Stage → verdict → number of steps. Every stage has an entry.
Totals = Mapping[Stage, Mapping[Verdict, int]]


@dataclass(frozen=True, kw_only=True)
class ErrorEntry:
    """An error: what is wrong, where, and what to do next. `package` is the package directory with the error."""

    package: str | None = optional()
    #: The name of the error's class.
    type: str
    text: str
    file: str | None
    line: int | None
    column: int | None = optional()
    hint: str | None
    step: str | None = optional()
    #: The path of the file with the log of the step's worker.
    log: str | None = optional()

    @property
    def place(self) -> str:
        """``file:line:column`` as far as it is known; otherwise the empty string."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True, kw_only=True)
class StepError:
    """Why a step failed."""

    #: The name of the error's class.
    type: str
    text: str
    file: str | None
    line: int | None
    log: str | None = optional()


@dataclass(frozen=True, kw_only=True)
class StepEntry:
    """A step, its verdict and its results.

    `source` is the origin of the results. For a hit it is ``local`` or a remote's name. For a step that ran it is
    ``built``, and otherwise null. `saved_s`: for a hit, the seconds that the step took when it ran. `worker`: the
    scheduler's worker that ran the step (``--workers``).
    """

    id: str
    model: str
    stage: Stage
    target: str | None
    key: str | None
    verdict: Verdict
    source: str | None
    reason: Reason
    duration_s: float
    saved_s: float
    outputs: Mapping[str, Output]
    worker: str | None = optional()
    error: StepError | None = optional()


@dataclass(frozen=True, kw_only=True)
class PlannedOutput:
    """One output of a model."""

    model: str
    #: ``package``, ``plans``, …: the name in the manifest's `outputs`.
    kind: str
    path: str


@dataclass(frozen=True, kw_only=True)
class BuiltOutput(PlannedOutput):
    """An output of a model, and whether this build wrote its files."""

    written: bool


@dataclass(frozen=True, kw_only=True)
class EqualAxes:
    """Axes of a model that must have equal sizes, such as ``["x.0", "y.0"]``.

    The manifest declares separate dims for them. The trace has found that the model requires equal sizes.
    """

    model: str
    axes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The known steps of the requested models: whether a build would run each step, and why."""

    schema: Literal["trtbuild.plan/1"] = "trtbuild.plan/1"
    ok: bool
    duration_s: float
    totals: Totals
    steps: Sequence[StepEntry]
    outputs: Sequence[PlannedOutput]
    equal_axes: Sequence[EqualAxes] | None = optional()
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]
    remotes: Sequence[RemoteStatistics]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The comparison of models or packages with PyTorch or onnxruntime.

    `random_points`: the number of comparisons with random sizes, for each profile.
    """

    schema: Literal["trtbuild.verify/1"] = "trtbuild.verify/1"
    ok: bool
    duration_s: float
    seed: int
    random_points: int
    models: Sequence[ModelEntry | PackageEntry]
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Build:
    """The result of a build.

    `not_begun`: the number of steps that could have run, but did not start because another step failed.
    """

    schema: Literal["trtbuild.build/1"] = "trtbuild.build/1"
    ok: bool
    duration_s: float
    totals: Totals
    steps: Sequence[StepEntry]
    outputs: Sequence[BuiltOutput]
    not_begun: int
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]
    remotes: Sequence[RemoteStatistics]
    verification: Verification | None = optional()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The document of a command that ended with an error. It has all errors and no steps.

    `totals`: after an interrupted build, the steps until then, as in `Build`; otherwise 0.
    `schema` is the schema of the command's usual document.
    """

    schema: str
    ok: bool
    duration_s: float
    totals: Totals
    steps: Sequence[StepEntry]
    outputs: Sequence[PlannedOutput]
    errors: Sequence[ErrorEntry]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class NearestRecord:
    """The record in the local cache that is most similar to a step that this project has never built.

    `changed` are the parts of the recipes that differ: `was` is the value in the record, and `now` the value in the step.
    `builder` is the user and the machine that made the record: ``user@host``. `finished` is the time.
    """

    key: str
    builder: str | None
    finished: str | None
    changed: Sequence[Change]


@dataclass(frozen=True, kw_only=True)
class WhyStep:
    """Why a step would run now, and why it last ran."""

    id: str
    key: str | None
    verdict: Verdict
    reason: Reason
    last_run: LastRun | None
    nearest: NearestRecord | None = optional()


@dataclass(frozen=True, kw_only=True)
class Why:
    """The reasons of the selected steps."""

    schema: Literal["trtbuild.why/1"] = "trtbuild.why/1"
    steps: Sequence[WhyStep]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A step, as a node of the graph."""

    id: str
    model: str
    stage: Stage
    target: str | None
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The known steps. In an edge (a, b), step b reads outputs of step a."""

    schema: Literal["trtbuild.graph/1"] = "trtbuild.graph/1"
    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The first step that a build of a model would run."""

    id: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class StatusOutput:
    """One output of the model."""

    #: As in `PlannedOutput`.
    kind: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """Whether a model is built and its outputs are in place. `steps` are the numbers of steps by verdict."""

    model: str
    up_to_date: bool
    steps: Mapping[Verdict, int]
    next: NextStep | None
    outputs: Sequence[StatusOutput]


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of each model."""

    schema: Literal["trtbuild.status/1"] = "trtbuild.status/1"
    models: Sequence[ModelStatus]
    warnings: Sequence[str]


#: ``changed``: a file has changed. ``untraced``: a calibration or trace would run, so the model counts as affected.
#: ``unchanged``: no file has changed, so the model is not affected.
AffectedCode = Literal["changed", "untraced", "unchanged"]


@dataclass(frozen=True, kw_only=True)
class AffectedModel:
    """Whether changes affect a model, and why.

    `changed` are the changed files on which the model depends. `untracked` are those of its files whose changes git does
    not report, such as ignored files.
    """

    model: str
    affected: bool
    code: AffectedCode
    text: str
    changed: Sequence[str]
    untracked: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Affected:
    """The answers about the requested models. `since` is the full hash of the commit."""

    schema: Literal["trtbuild.affected/1"] = "trtbuild.affected/1"
    since: str
    models: Sequence[AffectedModel]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file that `init` wrote, extended, or left unchanged."""

    path: str
    #: ``written``, ``extended`` or ``unchanged``.
    action: str
    text: str


@dataclass(frozen=True, kw_only=True)
class InstalledToolchain:
    """The toolchain of a new manifest. `version` is null if it is not installed."""

    name: str
    version: str | None


@dataclass(frozen=True, kw_only=True)
class NewProject:
    """A new project, and the commands to type next."""

    schema: Literal["trtbuild.init/1"] = "trtbuild.init/1"
    ok: bool = True
    files: Sequence[NewFile]
    model: str
    source: str
    toolchain: InstalledToolchain
    targets: Sequence[str]
    warnings: Sequence[str]
    next: Sequence[str]
