"""The steps of a build of a module, from trace to engine, in one process and without a store on disk.

After the trace, the handlers of workers are called with the jobs that a build would send to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.store.memory_store import MemoryStore
from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan, profile_sizes, proof_points
from trtbuild.core.model.spec import (
    Input,
    Model,
    NamedDim,
    Origin,
    PartitionSettings,
    Precision,
    Profile,
    ShapeRange,
    Source,
    Target,
)
from trtbuild.core.partition.partitions import Partition, Partitions
from trtbuild.core.planning.comparison import make_comparison
from trtbuild.core.planning.expand import engine_job, symbol_values
from trtbuild.core.planning.jobs import LowerJob, PartitionJob
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project.environment import toolchain_facts, torch_versions
from trtbuild.driver.workers import handlers
from trtbuild.driver.workers.handlers import tensor_bytes
from trtbuild.driver.workers.results import Context
from trtbuild.stages.program.functional import Program
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.run import TraceResult, trace_module
from trtbuild.stages.trace.user_code.frames import Frames
from trtbuild.stages.trace.user_code.owners import FileOwners

TARGET = Target("ada", 89)

#: min, opt and max of an axis, or the size of a static axis.
Axis = int | tuple[int, int, int]


@dataclass(frozen=True)
class ModuleCase:
    """A module, its inputs (dtype and axes) and its build settings. The inputs are called x0, x1 and so on."""

    module: torch.nn.Module
    inputs: Sequence[tuple[str, Sequence[Axis]]]
    dims: tuple[NamedDim, ...] = ()
    precision: Precision = "float32"
    granularity: tuple[str, ...] = ("model",)
    torch_executed_ops: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        """The case as a manifest would declare it."""
        return Model(
            "fuzzed",
            Source("python", "fuzzed:build"),
            tuple(Input(f"x{k}", dtype) for k, (dtype, _) in enumerate(self.inputs)),
            (Profile("p", tuple((f"x{k}", _range(axes)) for k, (_, axes) in enumerate(self.inputs))),),
            (TARGET,),
            Origin("trtbuild.yaml", 1),
            dims=self.dims,
            precision=self.precision,
            partition=PartitionSettings(self.granularity, min_block_size=1, torch_executed_ops=self.torch_executed_ops),
        )

    @property
    def shapes(self) -> ShapePlan:
        """The shape plan of the model. Raises ValueError for ranges that are invalid in a manifest."""
        model = self.model
        plan, problems = derive(model.inputs, model.dims, model.profiles)
        if plan is None:
            raise ValueError("; ".join(problem.text for problem in problems))
        return plan


def _range(axes: Sequence[Axis]) -> ShapeRange:
    low, mid, high = (tuple(a if isinstance(a, int) else a[which] for a in axes) for which in range(3))
    return ShapeRange(low, mid, high)


@dataclass(frozen=True)
class Built:
    """The results of the steps.

    `programs`, `onnx`: `graph` of a partition → digest in `store`. `jobs`: name of a partition → job of its engine.
    `layers`: name of a partition → the compiler's document about the engine.
    """

    model: Model
    shapes: ShapePlan
    traced: Program
    output_tree: Any
    weights: tuple[Weight, ...]
    partitions: Partitions
    store: MemoryStore
    programs: Mapping[str, str]
    onnx: Mapping[str, str]
    jobs: Mapping[str, EngineJob] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)


def build(case: ModuleCase, *, engines: bool = True, target: Target = TARGET) -> Built:
    """Trace, lower, partition and convert for a target. Raises the error of a step.

    With `engines`, also compare the lowered program with the traced program, and compile the engines.
    """
    model, shapes, store = case.model, case.shapes, MemoryStore()
    traced = _traced(case.module.eval(), model, shapes)
    weights = tuple(_weight(value, store) for _, value in sorted(traced.weights, key=lambda pair: pair[0]))
    steps = _Steps(model, shapes, weights, store, target)
    lowered = steps.lower(traced, compare=engines)
    partitions, programs, onnx = steps.partition(lowered)
    jobs = {part.name: steps.engine_job(part, onnx) for part in partitions.partitions if part.kind == "tensorrt"}
    return Built(
        model,
        shapes,
        Program.from_bytes(traced.program),
        traced.interface["output_tree"],
        weights,
        partitions,
        store,
        programs,
        onnx,
        jobs,
        {name: steps.engine(job) for name, job in jobs.items()} if engines else {},
    )


def _traced(module: torch.nn.Module, model: Model, shapes: ShapePlan) -> TraceResult:
    job = TraceJob(model.source, model.inputs, shapes, proof_points(shapes, model.profiles))
    with torch.no_grad():
        return trace_module(module, job, Frames(FileOwners(), Path.cwd()))


class _Steps:
    """Runs the steps after the trace: makes their jobs, and calls the handlers of workers."""

    def __init__(
        self, model: Model, shapes: ShapePlan, weights: Sequence[Weight], store: MemoryStore, target: Target
    ) -> None:
        self._model, self._shapes, self._weights, self._store = model, shapes, weights, store
        self._target, self._facts = target, toolchain_facts(target)
        self._context = Context(store, Path.cwd())  # type: ignore[arg-type]
        (profile,) = model.profiles
        symbol_sizes = dict.fromkeys(profile_sizes(shapes, profile, which) for which in ("min", "opt", "max"))
        self._points = tuple(symbol_values(shapes, sizes) for sizes in symbol_sizes)

    def lower(self, traced: TraceResult, *, compare: bool = True) -> Mapping[str, Output]:
        job = LowerJob(
            program=self._store.put_bytes(traced.program).sha256,
            graph_kind="program",
            precisions=self._model.precisions,
            points=self._points,
            comparison=make_comparison(self._model, self._shapes, self._weights) if compare else None,
        )
        return handlers.lower(job, self._context).outputs

    def partition(self, lowered: Mapping[str, Output]) -> tuple[Partitions, dict[str, str], dict[str, str]]:
        """The partition document, graph → digest of its program, and graph → digest of its ONNX model."""
        job = PartitionJob(
            program=lowered["program"].sha256,
            graph_kind="program",
            settings=self._model.partition,
            toolchain=self._target.toolchain,
            toolchain_version=self._facts.version,
            opset=self._facts.opset,
            versions=self._versions,
            points=self._points,
            stand_in=self._facts.stand_in and asdict(self._facts.stand_in),
        )
        results = handlers.partition(job, self._context)
        partitions = Partitions.from_bytes(self._store.get_bytes(results.outputs["partitions"].sha256))
        programs = {part.graph: results.outputs[f"program:{part.graph}"].sha256 for part in partitions.partitions}
        onnx = {}
        for part in partitions.partitions:
            if part.kind == "tensorrt":
                key = keys.convert(part.graph, self._facts.opset, self._versions).key
                record = Record.from_bytes(results.conversions[key].record.encode())
                onnx[part.graph] = record.outputs["onnx"].sha256
        return partitions, programs, onnx

    def engine_job(self, part: Partition, onnx: Mapping[str, str]) -> EngineJob:
        """The job of an engine. Optimization level 0 compiles fastest, and does not change types or shapes."""
        settings = BuilderSettings(workspace=self._facts.workspace, optimization_level=0)
        return engine_job(
            self._model,
            self._shapes,
            part,
            onnx[part.graph],
            self._weights,
            settings,
            self._target,
            self._facts.version,
        )

    def engine(self, job: EngineJob) -> Any:
        """The compiler's document about the network of an engine."""
        outputs = handlers.engine(job, self._context).outputs
        return json.loads(self._store.get_bytes(outputs["layers"].sha256))

    @property
    def _versions(self) -> Mapping[str, str]:
        versions = torch_versions()
        assert versions is not None
        return versions


def _weight(value: torch.Tensor, store: MemoryStore) -> Weight:
    dtype, shape, data = tensor_bytes(value)
    return Weight(dtype, shape, store.put_bytes(data).sha256)
