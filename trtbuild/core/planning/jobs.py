"""The jobs of the steps before the engines, as values. Blobs are named by SHA-256, so any worker that reaches the store
can run
them.

`trtbuild.core.engines.engine_job.EngineJob` is the engine step's. The package step has none: it is done where it is
planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import PartitionSettings, Precision, SourceForm, ToolchainName
from trtbuild.core.planning.comparison import Comparison


@dataclass(frozen=True)
class WeightHeads:
    """The part of a trace job that planning knows: name, dtype and shape of each tensor of the weights file, if any."""

    weights: tuple[tuple[str, str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True)
class LowerJob:
    """Lower `program`, a traced model of the form `form`, to compute in `precision`.

    `operators` are those from outside PyTorch. `points` are numbers of the symbols at which sizes are compared.
    """

    program: str
    form: SourceForm
    precision: Precision
    operators: tuple[str, ...] = ()
    points: tuple[tuple[int, ...], ...] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True)
class PartitionJob:
    """Cut `program`, a lowered model, into partitions for a toolchain.

    `stand_in` are the fields of a parser that is asked in place of the toolchain's own. `trust` is the policy by which
    records of conversions are believed; None believes all.
    """

    program: str
    form: SourceForm
    settings: PartitionSettings
    toolchain: ToolchainName
    toolchain_version: str
    opset: int
    versions: Mapping[str, str]
    points: tuple[tuple[int, ...], ...] = ()
    stand_in: Mapping[str, Any] | None = None
    trust: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ConvertJob:
    """Convert `program`, a partition, to ONNX in `opset`."""

    program: str
    form: SourceForm
    opset: int


#: The job of a step, by its stage. A package has none.
StepJob = WeightHeads | LowerJob | PartitionJob | ConvertJob | EngineJob
