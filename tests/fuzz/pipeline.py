"""A module through every step of a build, in one process and without a store on disk.

The steps' own functions are called, with what the driver would hand them: what is left is what a build would leave,
before it is packaged. `tests.fuzz.comparing` says whether it is the module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trtbuild.core import keys
from trtbuild.core.comparison import comparison
from trtbuild.core.engine_job import EngineJob, Weight
from trtbuild.core.expand import engine_job
from trtbuild.core.partitions import Partition, Partitions
from trtbuild.core.planning import ToolchainFacts
from trtbuild.core.record import Record
from trtbuild.core.shapes import ShapePlan, derive, symbol_values
from trtbuild.core.spec import (
    BuilderSettings,
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
from trtbuild.driver.environment import toolchain_facts, torch_versions
from trtbuild.driver.handlers import compare_lowered
from trtbuild.driver.judge import Judge
from trtbuild.stages.lower.run import lower
from trtbuild.stages.partition.document import Partitioned
from trtbuild.stages.partition.run import partition
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.trace.frames import Frames
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.places import Places
from trtbuild.stages.trace.run import Traced, trace_module
from trtbuild.store.memory import MemoryStore
from trtbuild.toolchain.compiler import compile_engine

TARGET = Target("ada", 89)

#: min, opt and max of an axis; a number is a static axis.
Axis = int | tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """A module, its inputs (dtype and axes) and how it is built. Inputs are called x0, x1 and so on."""

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
            partition=PartitionSettings(self.granularity, 1, self.torch_executed_ops),
        )

    @property
    def shapes(self) -> ShapePlan:
        """Raises ValueError for ranges that no manifest may have."""
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
    """What the steps left. `programs` and `onnx` are digests in `store` by graph; `jobs` and `layers` (the document that
    the compiler leaves) are of each engine, by its partition's name."""

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


def build(case: Case) -> Built:
    """Trace, lower, partition, convert and compile. Raises what a step raises: a TrtbuildError is a refusal."""
    model, shapes, store = case.model, case.shapes, MemoryStore()
    facts = toolchain_facts(TARGET)
    judge = _judge(store, facts)
    with torch.no_grad():
        traced = _traced(case.module.eval(), model, shapes)
        weights = tuple(_weight(value, store) for _, value in sorted(traced.weights, key=lambda pair: pair[0]))
        lowered = _lowered(traced, model, shapes, weights, store)
        found = partition(Program.from_bytes(lowered.to_bytes()), model.partition, judge)
    onnx = _conversions(found, judge, facts)
    jobs = {
        part.name: _engine_job(model, shapes, part, onnx, weights, facts)
        for part in found.document.partitions
        if part.kind == "tensorrt"
    }
    return Built(
        model,
        shapes,
        Program.from_bytes(traced.program),
        traced.interface["output_tree"],
        weights,
        Partitions.from_bytes(found.document.to_bytes()),
        store,
        {graph: store.put_bytes(program.to_bytes()).sha256 for graph, program in found.programs.items()},
        onnx,
        jobs,
        {name: json.loads(compile_engine(job, store.get_bytes).layers) for name, job in jobs.items()},
    )


def _traced(module: torch.nn.Module, model: Model, shapes: ShapePlan) -> Traced:
    ends = dict.fromkeys(symbol_values(shapes, model.profiles[0], which) for which in ("min", "max"))
    job = TraceJob(model.source, model.inputs, shapes, tuple(ends))
    return trace_module(module, job, Frames(Places(), Path.cwd()))


def _lowered(traced: Traced, model: Model, shapes: ShapePlan, weights: Sequence[Weight], store: MemoryStore) -> Program:
    program = Program.from_bytes(traced.program)
    lowered = lower(program, model.precision, decomposition_table())
    told = comparison(model, shapes, weights)
    assert told is not None
    compare_lowered(told, model.precision, program, lowered, store)
    return lowered


def _judge(store: MemoryStore, facts: ToolchainFacts) -> Judge:
    job = {
        "opset": facts.opset,
        "versions": _versions(),
        "toolchain": TARGET.toolchain,
        "toolchain_version": facts.version,
    }
    return Judge(store, job)


def _versions() -> Mapping[str, str]:
    versions = torch_versions()
    assert versions is not None
    return versions


def _conversions(found: Partitioned, judge: Judge, facts: ToolchainFacts) -> dict[str, str]:
    """The digest of each engine's ONNX by graph: the conversions that the judge has made and kept."""
    made = {}
    for part in found.document.partitions:
        if part.kind == "tensorrt":
            key = keys.convert(part.graph, facts.opset, _versions()).key
            record = Record.from_bytes(str(judge.made[key]["record"]).encode())
            made[part.graph] = record.outputs["onnx"].sha256
    return made


def _engine_job(
    model: Model,
    shapes: ShapePlan,
    part: Partition,
    onnx: Mapping[str, str],
    weights: Sequence[Weight],
    facts: ToolchainFacts,
) -> EngineJob:
    """The job of a build, but compiled quickly: how kernels are chosen changes no type and no shape."""
    settings = BuilderSettings(workspace=facts.workspace, optimization_level=0)
    return engine_job(model, shapes, part, onnx[part.graph], weights, settings, TARGET, facts.version)


def _weight(value: torch.Tensor, store: MemoryStore) -> Weight:
    raw = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return Weight(str(value.dtype).removeprefix("torch."), tuple(value.shape), store.put_bytes(raw).sha256)
