"""A model through every step of a build, in one process and without a store on disk, and then against eager PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from trtbuild.core.engine_job import EngineJob, Weight
from trtbuild.core.expand import engine_job
from trtbuild.core.partitions import Partition, Partitions
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
from trtbuild.core.verification import Point, points, tolerance
from trtbuild.driver.environment import toolchain_facts, torch_versions
from trtbuild.driver.judge import Judge
from trtbuild.stages.lower.run import lower
from trtbuild.stages.partition.run import partition
from trtbuild.stages.program.functional import Program
from trtbuild.stages.program.translations import decomposition_table
from trtbuild.stages.trace.frames import Frames
from trtbuild.stages.trace.job import TraceJob
from trtbuild.stages.trace.places import Places
from trtbuild.stages.trace.run import trace_module
from trtbuild.stages.verify.by_onnxruntime import OnnxRuntime
from trtbuild.stages.verify.comparing import gap
from trtbuild.stages.verify.inputs import integer_ends, random_inputs
from trtbuild.stages.verify.running import Torch, Unchecked, Values, Weights
from trtbuild.store.memory import MemoryStore
from trtbuild.toolchain.compiler import compile_engine

#: min, opt and max of each axis; a number is a static axis.
Axis = int | tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """A module, its inputs (dtype and axes) and how it is built. Axes with the same name in `dims` are one dim."""

    module: torch.nn.Module
    inputs: Sequence[tuple[str, Sequence[Axis]]]
    dims: tuple[NamedDim, ...] = ()
    precision: Precision = "float32"
    granularity: tuple[str, ...] = ("model",)
    torch_executed_ops: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        inputs = tuple(Input(f"x{k}", dtype) for k, (dtype, _) in enumerate(self.inputs))
        ranges = tuple(
            (
                f"x{k}",
                ShapeRange(*(tuple(a if isinstance(a, int) else a[which] for a in axes) for which in range(3))),
            )
            for k, (_, axes) in enumerate(self.inputs)
        )
        target = Target("ada", 89)
        return Model(
            "m",
            Source("python", "m:build"),
            inputs,
            (Profile("p", ranges),),
            (target,),
            Origin("trtbuild.yaml", 1),
            dims=self.dims,
            precision=self.precision,
            partition=PartitionSettings(self.granularity, 1, self.torch_executed_ops),
        )


@dataclass(frozen=True)
class Built:
    """What the steps left."""

    model: Model
    shapes: ShapePlan
    traced: Program
    weights: list[torch.Tensor]
    partitions: Partitions
    store: MemoryStore
    programs: dict[str, str]
    onnx: dict[str, str]
    layers: dict[str, Any]


def build(case: Case) -> Built:
    """Raises what a step raises: a TrtbuildError is a refusal."""
    model = case.model
    shapes, problems = derive(model.inputs, model.dims, model.profiles)
    assert shapes is not None, problems
    job = TraceJob(
        model.source,
        model.inputs,
        shapes,
        tuple(dict.fromkeys(symbol_values(shapes, model.profiles[0], which) for which in ("min", "max"))),
    )
    store = MemoryStore()
    with torch.no_grad():
        traced = trace_module(case.module.eval(), job, Frames(Places(), Path.cwd()))
        program = lower(Program.from_bytes(traced.program), model.precision, decomposition_table())
        program = Program.from_bytes(program.to_bytes())
        (target,) = model.targets
        facts = toolchain_facts(target)
        versions = torch_versions()
        assert versions is not None
        judge = Judge(
            store,
            {
                "opset": facts.opset,
                "versions": versions,
                "toolchain": target.toolchain,
                "toolchain_version": facts.version,
            },
        )
        found = partition(program, model.partition, judge)
    programs = {graph: store.put_bytes(piece.to_bytes()).sha256 for graph, piece in found.programs.items()}
    weights = [value.contiguous() for _, value in sorted(traced.weights, key=lambda pair: pair[0])]
    table = [_weight(value, store) for value in weights]
    onnx, layers = {}, {}
    for part in found.document.partitions:
        if part.kind == "tensorrt":
            piece = Program.from_bytes(store.get_bytes(programs[part.graph]))
            from trtbuild.stages.program.text import program_text

            model_bytes, _ = judge._converted(piece, program_text(piece))
            onnx[part.graph] = store.put_bytes(model_bytes).sha256
            engine = engine_job(
                model, shapes, part, onnx[part.graph], table, _settings(facts.workspace), target, facts.version
            )
            layers[part.name] = json.loads(compile_engine(engine, store.get_bytes).layers)
    return Built(
        model,
        shapes,
        Program.from_bytes(traced.program),
        weights,
        found.document,
        store,
        programs,
        onnx,
        layers,
    )


def _settings(workspace: int | None) -> BuilderSettings:
    return BuilderSettings(workspace=workspace, optimization_level=0)


def _weight(value: torch.Tensor, store: MemoryStore) -> Weight:
    raw = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return Weight(str(value.dtype).removeprefix("torch."), tuple(value.shape), store.put_bytes(raw).sha256)


def differences(case: Case, built: Built, *, count: int = 2) -> list[str]:
    """Where what was built is not the module: in words; empty is good."""
    found = []
    model, shapes = built.model, built.shapes
    table = tuple(_weight(value, built.store) for value in built.weights)
    weights = Weights(table, built.store.get_bytes)
    onnx = OnnxRuntime(lambda graph: built.store.get_bytes(built.onnx[graph]), weights)
    eager = Torch(built.programs, weights, built.store.get_bytes)
    ends = integer_ends(built.traced)
    allowed = tolerance("onnxruntime", model.precision)
    inputs_ = [(entry.name, entry.dtype) for entry in model.inputs]
    for point in points(model, shapes, count=count):
        inputs = random_inputs(inputs_, shapes.sizes(point.sizes), point, ends)
        where = f"{point.which} {list(point.sizes)}"
        with torch.no_grad():
            want = [v for v in pytree.tree_leaves(case.module(*inputs)) if isinstance(v, torch.Tensor)]
            want = list({id(value): value for value in want}.values())
        values = Values(built.partitions, weights, inputs)
        for number, part in enumerate(built.partitions.partitions):
            given = values.of(part)
            theirs = eager.part(part, given)
            found += _declared(part, theirs, point, shapes, where)
            if part.kind == "tensorrt":
                try:
                    ours = onnx(part, given, point)
                except Unchecked:
                    ours = theirs
                except Exception as error:
                    found.append(f"{part.name} at {where}: {error}")
                    ours = theirs
                for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                    far = gap(a, b)
                    if not far.error <= _allowed(allowed, b, model.precision, given):
                        found.append(f"{part.name}:{k} at {where}: {far.text or far.error}")
            values.put(number, part, theirs)
        if len(want) != len(built.partitions.outputs):
            found.append(f"{len(want)} outputs, {len(built.partitions.outputs)} declared")
        for k, (source, b) in enumerate(zip(built.partitions.outputs, want, strict=False)):
            far = gap(values[source], b)
            if not far.error <= 4 * _allowed(allowed, b, model.precision, inputs):
                found.append(f"output {k} at {where}: {far.text or far.error}")
    return found


def _allowed(allowed: float, value: torch.Tensor, precision: str, inputs: Sequence[torch.Tensor]) -> float:
    kinds = {value.dtype, *(each.dtype for each in inputs)}
    if torch.bfloat16 in kinds:
        return max(allowed, tolerance("onnxruntime", "bfloat16"))
    if torch.float16 in kinds:
        return max(allowed, tolerance("onnxruntime", "float16"))
    return allowed


def _declared(part: Partition, values: Sequence[torch.Tensor], point: Point, shapes: ShapePlan, where: str) -> list[str]:
    """Where a partition's outputs are not what its document says."""
    from trtbuild.core.expand import units
    from trtbuild.core.expressions import depends_on_data, evaluate

    found = []
    sizes = units(shapes, point.sizes)
    for k, (type_, value) in enumerate(zip(part.outputs, values, strict=True)):
        dtype = str(value.dtype).removeprefix("torch.")
        if len(type_.shape) != value.dim() or dtype != type_.dtype:
            found.append(f"{part.name}:{k} at {where} is {dtype}{list(value.shape)}, declared {type_}")
            continue
        for declared, size in zip(type_.shape, value.shape, strict=True):
            if not depends_on_data(declared) and evaluate(declared, sizes) != size:
                found.append(f"{part.name}:{k} at {where} is {list(value.shape)}, declared {type_}")
                break
    return found
