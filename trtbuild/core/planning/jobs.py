"""The jobs of the steps before the engine step. A job says what a worker process has to do.

Jobs name blobs by SHA-256, so any worker that can read the store can run them. The engine step's job is
`trtbuild.core.engines.engine_job.EngineJob`. The package step has no job, because the build's own process runs this step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.graph_kinds import GraphKindName
from trtbuild.core.model.plugins import Plugin
from trtbuild.core.model.precisions import Precisions
from trtbuild.core.model.spec import PartitionSettings, ToolchainName
from trtbuild.core.planning.comparison import Comparison


@dataclass(frozen=True)
class PlannedCalibration:
    """The part of a calibrate step's job that comes from planning: nothing, because the job follows from the model."""


@dataclass(frozen=True)
class PlannedTrace:
    """The part of a trace step's job that comes from planning. The rest of the job follows from the model.

    `weights` has the name, dtype and shape of each tensor of the weights file; None without a weights file. `quantizers` is
    the digest of the calibration's result; None without a calibration."""

    weights: tuple[tuple[str, str, tuple[int, ...]], ...] | None = None
    quantizers: str | None = None


@dataclass(frozen=True)
class LowerJob:
    """Lower `program`, a traced model, so that its modules compute in `precisions`.

    Each of the `points` has a value for each symbol (the variable for a dynamic dim). At these points, the sizes in the
    traced and in the lowered program are compared. `comparison` has the inputs and weights for comparing their output
    values; None if these are not compared. With `truncates_double`, float64 is computed in float32.
    """

    program: str
    graph_kind: GraphKindName
    precisions: Precisions
    points: tuple[tuple[int, ...], ...] = ()
    comparison: Comparison | None = None
    truncates_double: bool = False


@dataclass(frozen=True)
class PartitionJob:
    """Divide `program`, a lowered model, into partitions for a toolchain.

    `stand_in` has the fields of a `StandInParser`: the parser of another toolchain, which replaces the toolchain's own
    parser; None if the toolchain's own parser is used. `trust` is the policy for records of conversions; None if all
    records are trusted. `versions` are those of torch and related packages. `plugins` are those of the model. At the
    `points` (as in `LowerJob`), the sizes of the partitions are checked, and operators on empty tensors are found.
    """

    program: str
    graph_kind: GraphKindName
    settings: PartitionSettings
    toolchain: ToolchainName
    toolchain_version: str
    opset: int
    versions: Mapping[str, str]
    points: tuple[tuple[int, ...], ...] = ()
    stand_in: Mapping[str, Any] | None = None
    trust: Mapping[str, Any] | None = None
    plugins: tuple[Plugin, ...] = ()


@dataclass(frozen=True)
class ConvertJob:
    """Convert `program`, a partition, to ONNX in `opset`. Calls of operators in `plugins` become nodes of plugins."""

    program: str
    graph_kind: GraphKindName
    opset: int
    plugins: tuple[Plugin, ...] = ()


#: The job of a step. The package step has no job.
StepJob = PlannedCalibration | PlannedTrace | LowerJob | PartitionJob | ConvertJob | EngineJob
