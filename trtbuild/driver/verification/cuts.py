"""Derive the verifications of a model from its plan: one for each cut of the model.

A *cut* is one way in which a model is partitioned: the result of one partition step. The targets of one toolchain share it.
The verifications do not need engines, so a machine that cannot build engines can verify the conversions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.core.engines.binding import Interface
from trtbuild.core.model.quantized_types import is_rounded_weight
from trtbuild.core.model.verification import Point, tolerances
from trtbuild.core.partition.partitions import Partitions
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.workspace import Workspace
from trtbuild.stages.verify.job import FloatProgram, VerifyJob

#: The stages whose results a verification needs.
NEEDED_STAGES = ("trace", "lower", "partition", "convert")


@dataclass(frozen=True)
class CutVerification:
    """The verification of one cut: what is compared, and with which values."""

    #: The targets that share the cut.
    targets: tuple[str, ...]
    #: The name and version of the toolchain, for the JSON.
    toolchain: str
    verify_job: VerifyJob
    #: The SHA-256 of the traced program's text.
    program_graph: str
    partitions: Partitions
    #: Target → partition → SHA-256 of the built engine.
    plans: Mapping[str, Mapping[str, str]]
    #: Whether the model may call quantizers or dequantizers.
    quantized: bool


def missing_steps(plan: ModelPlan) -> list[Step]:
    """Return the steps that a verification needs, but that have no usable record."""
    return [
        step
        for step in plan.steps.values()
        if step.stage in NEEDED_STAGES and (step.verdict != "hit" or not step.record)
    ]


def verifications_of(
    workspace: Workspace,
    plan: ModelPlan,
    points: tuple[Point, ...],
    *,
    replay: str | None,
    float_program: FloatProgram | None = None,
) -> list[CutVerification]:
    """Return the verifications of a model. The steps of its `NEEDED_STAGES` must have records.

    `replay` is a file of inputs that replace the random inputs, or None. `float_program` is the traced float model of a
    model with ``quantize:``, or None."""
    model, contents = plan.model, plan.contents
    if contents is None:
        return []
    # the facts that all cuts of the model share
    trace, lower = (_record_of(plan.steps[f"{model.name}/{stage}"]) for stage in ("trace", "lower"))
    interface = Interface.from_bytes(workspace.lookups.blob(trace.outputs["interface"].sha256))
    state = interface.state_inputs
    has_rounded_weights = any(is_rounded_weight(slot.name) for slot in interface.slots)
    calls = workspace.lookups.blob(lower.outputs["modules"].sha256)
    # the names of quantizers contain "quantize"; a module path may contain it, too
    quantized = has_rounded_weights or b"quantize" in calls.lower()
    by_onnx = model.source.graph.reference == "onnxruntime"
    jobs = []
    for partition_step, targets in _targets_by_partitioning(plan).items():
        record = _record_of(plan.steps[partition_step])
        partitions = Partitions.from_bytes(workspace.lookups.blob(record.outputs["partitions"].sha256))
        conversions = _conversions(plan, partition_step)
        toolchains = {
            f"{target.toolchain} {contents.toolchains[target.name]}"
            for target in model.targets
            if target.name in targets
        }
        job = VerifyJob(
            program="" if by_onnx else trace.outputs["program"].sha256,
            modules=lower.outputs["modules"].sha256,
            partitions=record.outputs["partitions"].sha256,
            programs={} if by_onnx else _programs(record, partitions),
            onnx={graph: conversion.outputs["onnx"].sha256 for graph, conversion in conversions.items()},
            origins={graph: conversion.outputs["origins"].sha256 for graph, conversion in conversions.items()},
            weights=tuple(contents.weights[: interface.program_slot_count]),
            inputs=(*((entry.name, entry.dtype) for entry in model.inputs), *state.inputs),
            tolerances=tolerances("onnxruntime"),
            ranges={
                **{entry.name: entry.range for entry in model.inputs if entry.range is not None},
                **state.ranges,
            },
            by_onnx=by_onnx,
            replay=replay,
            float_program=float_program,
            has_rounded_weights=has_rounded_weights,
            operators=interface.operators,
            roots=tuple(model.source.roots),
            first_state=tuple(contents.weights[interface.program_slot_count :]),
        ).at(points, plan.shapes)
        jobs.append(
            CutVerification(
                targets=targets,
                toolchain=", ".join(sorted(toolchains)),
                verify_job=job,
                program_graph=trace.outputs["graph"].sha256,
                partitions=partitions,
                plans=_plans_by_target(plan, targets),
                quantized=quantized,
            )
        )
    return jobs


def unique_points(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return the points of a conversion: all random points, and one other point for each combination of sizes.

    Points of two profiles may have the same sizes. A conversion needs one of these points only, because ONNX has no
    profiles.
    """
    first_points: dict[tuple[int, ...], Point] = {}
    return tuple(
        point
        for point in points
        if point.which.startswith("random") or first_points.setdefault(point.sizes, point) is point
    )


def _programs(record: Record, partitions: Partitions) -> dict[str, str]:
    return {partition.graph: record.outputs[f"program:{partition.graph}"].sha256 for partition in partitions.partitions}


def _record_of(step: Step) -> Record:
    if step.record is None:
        raise AssertionError(f"{step.id} has no record")
    return step.record


def _targets_by_partitioning(plan: ModelPlan) -> dict[str, tuple[str, ...]]:
    """Return id of a partition step → the targets whose engines come from this step."""
    targets_by_step: dict[str, list[str]] = {}
    for step in plan.steps.values():
        if step.stage == "engine" and step.target is not None:
            convert_step = next(
                plan.steps[name] for name in step.producers if name in plan.steps and _is_convert(plan, name)
            )
            (partition_step,) = convert_step.producers
            targets = targets_by_step.setdefault(partition_step, [])
            if step.target not in targets:
                targets.append(step.target)
    return {partition_step: tuple(names) for partition_step, names in targets_by_step.items()}


def _is_convert(plan: ModelPlan, name: str) -> bool:
    return plan.steps[name].stage == "convert"


def _conversions(plan: ModelPlan, partition_step: str) -> dict[str, Record]:
    """Return SHA-256 of a partition's graph → the record of its convert step."""
    return {
        str(dict(step.recipe.parts)["graph"]): _record_of(step)
        for step in plan.steps.values()
        if step.stage == "convert" and step.recipe is not None and partition_step in step.producers
    }


def _plans_by_target(plan: ModelPlan, targets: tuple[str, ...]) -> dict[str, dict[str, str]]:
    engines = plan.contents.engines if plan.contents is not None else ()
    return {
        target: {
            engine.partition: engine.plan.sha256
            for engine in engines
            if engine.target == target and engine.plan is not None
        }
        for target in targets
    }
