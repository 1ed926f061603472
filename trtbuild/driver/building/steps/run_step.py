"""Run one step: send its job to a worker, and publish the record of its results."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.shapes import pairs_of_separate_symbols, proof_points
from trtbuild.core.planning.demand import blobs_read_by
from trtbuild.core.planning.graph import USER_CODE_STAGES, Step
from trtbuild.core.planning.jobs import PartitionJob, PlannedTrace
from trtbuild.core.planning.model_plan import Facts, ModelPlan
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.steps.package_record import create_package_record
from trtbuild.driver.building.steps.pointers import (
    publish_for_any_versions,
    publish_partitions_for_any_parser,
)
from trtbuild.driver.building.steps.unchecked import Publication
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.outcome import StepRun
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.provenance import provenance
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import SourceError
from trtbuild.stages.trace.calibration.job import CalibrateJob
from trtbuild.stages.trace.job import TraceJob
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.toolchain.libraries.table import FLAVOURS

if TYPE_CHECKING:
    from trtbuild.driver.farm.farm import Farm

#: Stage → past participle, for messages.
_PARTICIPLES = {"calibrate": "calibrated", "trace": "traced"}

#: Reasons to run a step although its key may have a record. The new record replaces this record.
_REPLACING_REASONS = ("forced", "evicted", "corrupt", "untrusted")


def run_step(
    step: Step,
    plan: ModelPlan,
    facts: Facts,
    lookups: StoreLookups,
    store: LayeredStore,
    pool: WorkerPool,
    publication: Publication,
    *,
    gpu: int | None = None,
    farm: Farm | None = None,
) -> StepRun:
    """Run one step whose inputs are in the store.

    `publication` announces the step's results before they are checked. It also publishes the record as soon as all earlier
    steps have passed their checks. The records of user code, and of engines that a worker of `farm` compiles, are published
    at once, because their earlier steps never announce results.

    `gpu` is the number of the only GPU that the step's worker process can use; None if it can use all GPUs. With `farm`,
    the workers of a scheduler compile the engines.

    Raises TrtbuildError, OSError, or any error of the step.
    """
    if step.recipe is None:
        raise AssertionError("a step runs when its recipe is known")
    start_s = time.monotonic()
    if step.reason.code == "corrupt":
        store.refuse_record(step.recipe.key)
    if step.stage == "package":
        package_record = create_package_record(step.recipe, plan, store, lookups)
        stored_record = publication.publish([package_record], lambda: store.put_record(package_record, replace=True))
        return StepRun(stored_record, time.monotonic() - start_s)
    if step.stage in USER_CODE_STAGES:
        return _run_user_code(step, plan, lookups, store, pool, publication)
    if step.stage in ("lower", "engine"):
        inputs = (sha256 for _, sha256 in blobs_read_by(step))
        lookups.files.put_blobs(plan.model, [sha256 for sha256 in inputs if sha256 in plan.project_blobs])
    store.fetch(sha256 for _, sha256 in blobs_read_by(step))
    job = step.job
    if isinstance(job, PartitionJob):
        job = replace(job, trust=store.local.trust.to_json())
        # with `farm`, other machines compile; if the toolchain needs a GPU, the GPU of the engine's worker is not known yet
        if farm is None and not FLAVOURS[job.toolchain].needs_gpu:
            pool.prepare("engine")
    if farm is not None and isinstance(job, EngineJob):
        return _compile_on_worker(step, job, farm, start_s)
    reply = call(pool, step.stage, job, gpu, publication.announce)
    publication.compare_with_announced(reply.outputs)
    step_record = Record(step.recipe, reply.outputs, provenance(reply))
    conversions = [Record.from_bytes(conversion.record.encode()) for conversion in reply.conversions.values()]

    def put() -> Record:
        for conversion in conversions:
            # the partition step converts a partition only if the store has no usable record of the conversion
            store.put_record(conversion, replace=True)
        stored_record = store.put_record(step_record, replace=step.reason.code in _REPLACING_REASONS)
        if step.stage == "partition":
            publish_partitions_for_any_parser(plan, facts, stored_record, store)
        return stored_record

    return StepRun(
        publication.publish([*conversions, step_record], put),
        time.monotonic() - start_s,
        conversions={key: conversion.duration_s for key, conversion in reply.conversions.items()},
        log=reply.log,
        peak_rss_bytes=reply.peak_rss_bytes,
    )


def _compile_on_worker(step: Step, job: EngineJob, farm: Farm, start_s: float) -> StepRun:
    """Let a worker of a scheduler compile an engine. `start_s` is the start of the step (`time.monotonic`)."""
    if step.recipe is None:
        raise AssertionError("a step runs when its recipe is known")
    inputs = [sha256 for _, sha256 in blobs_read_by(step)]
    compiled = farm.compile(step.recipe, job, inputs, replace=step.reason.code in _REPLACING_REASONS)
    return StepRun(
        compiled.record,
        time.monotonic() - start_s,
        log=compiled.log,
        peak_rss_bytes=compiled.peak_rss_bytes,
        worker=compiled.worker,
    )


def _trace_job(plan: ModelPlan, planned: PlannedTrace) -> TraceJob:
    """The job of a trace step. `planned` is the part of it that the plan has computed."""
    model = plan.model
    places = {path: f"{origin.file}:{origin.line}" for path, origin in model.places.items()}
    places.setdefault("model", f"{model.origin.file}:{model.origin.line}")
    shapes = plan.declared_shapes
    # `separate_pairs`: pairs of symbols that must not become one symbol, because some profile gives them different sizes
    points, separate_pairs = proof_points(shapes, model.profiles), pairs_of_separate_symbols(shapes, model.profiles)
    return TraceJob(
        model.source,
        model.inputs,
        shapes,
        points,
        planned.weights,
        places,
        separate_pairs,
        planned.quantizers,
        model.state,
    )


def _user_code_job(step: Step, plan: ModelPlan) -> TraceJob | CalibrateJob:
    if isinstance(step.job, PlannedTrace):
        return _trace_job(plan, step.job)
    if plan.model.quantization is None:
        raise AssertionError("only a model with `quantize:` has a calibrate step")
    return CalibrateJob(_trace_job(plan, PlannedTrace()), plan.model.quantization)


def _run_user_code(
    step: Step,
    plan: ModelPlan,
    lookups: StoreLookups,
    store: LayeredStore,
    pool: WorkerPool,
    publication: Publication,
) -> StepRun:
    start_s = time.monotonic()
    if step.stage not in USER_CODE_STAGES:
        raise AssertionError(f"{step.stage} runs no user code")
    code = plan.user_code[step.stage]
    store.fetch(sha256 for _, sha256 in blobs_read_by(step))
    reply = call(pool, step.stage, _user_code_job(step, plan), on_announced=publication.announce)
    publication.compare_with_announced(reply.outputs)
    observations = [Observation(Dependency.from_part(part), state) for part, state in reply.observations]
    changed_dependencies = lookups.find_changed_dependencies(observations)
    if changed_dependencies:
        names = ", ".join(dependency.name for dependency in changed_dependencies[:5])
        raise SourceError(
            f"{names} changed while model {plan.model.name!r} was {_PARTICIPLES[step.stage]}: nothing was kept",
            code="changed-during-trace",
            hint="run the build again",
        )
    uncacheable = reply.uncacheable
    if not plan.model.source.cacheable:
        uncacheable = "the manifest says `cacheable: false`"
    if uncacheable:
        # the record is not stored, so no other build can find it
        record = Record(keys.user_code(code.declared, code.observations), reply.outputs, provenance(reply))
        return StepRun(
            record,
            time.monotonic() - start_s,
            uncacheable=uncacheable,
            observations=observations,
            log=reply.log,
            peak_rss_bytes=reply.peak_rss_bytes,
        )
    lookups.use_observations(observations)
    # the links of the chain, which name the dependencies, lead later builds to the record
    chained = chain.extend(code.declared, observations, lookups.read_link, lookups.write_link, lookups.observe)
    recipe = keys.user_code(code.declared, chained)
    record = Record(recipe, reply.outputs, provenance(reply))
    record = store.put_record(record, replace=step.reason.code in _REPLACING_REASONS)
    publish_for_any_versions(code.declared, observations, record, lookups, store)
    return StepRun(
        record,
        time.monotonic() - start_s,
        observations=observations,
        log=reply.log,
        peak_rss_bytes=reply.peak_rss_bytes,
    )
