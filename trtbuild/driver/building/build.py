"""A build: plan, run the steps that are not hits, and write the outputs. Nothing is printed here."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trtbuild.core.planning.graph import STAGES, ModelPlan, Step, stages_until
from trtbuild.core.planning.locks import LOCK_FILE
from trtbuild.core.planning.priorities import weights_bytes
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building.execution import memory
from trtbuild.driver.building.execution.estimates import Estimates
from trtbuild.driver.building.execution.executor import Callbacks, execute
from trtbuild.driver.building.execution.gpu_limit import GpuLimit
from trtbuild.driver.building.execution.memory import MemoryLimit
from trtbuild.driver.building.farm_of_build import farm_of_build, threads_and_limit
from trtbuild.driver.building.operator_warnings import operator_warnings
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.building.quantization_warnings import quantization_warnings
from trtbuild.driver.building.steps import refused_nodes
from trtbuild.driver.building.steps.run_step import run_step
from trtbuild.driver.building.steps.unchecked import UncheckedSteps
from trtbuild.driver.building.write_outputs import write_outputs
from trtbuild.driver.project.blame import place_in_manifest
from trtbuild.driver.project.folders import LOG_FOLDER
from trtbuild.driver.project.history import LastRun
from trtbuild.driver.project.locked import differing_engines, unlocked_results
from trtbuild.driver.project.outcome import Interrupted, Outcome, StepRun, WrittenOutput
from trtbuild.driver.project.shortage import refuse_small_memory
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.workers import logs
from trtbuild.driver.workers.forking.lending import ServerSource
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    FrozenError,
    InternalError,
    StoreError,
    ToolchainError,
    TrtbuildError,
)

if TYPE_CHECKING:
    from trtbuild.driver.farm.farm import Farm

__all__ = ["Request", "Workspace", "build"]

#: The largest number of steps that the error of `--frozen` lists.
MAX_LISTED = 20


def build(workspace: Workspace, watcher: Watcher, servers: ServerSource | None = None) -> BuildResult:
    """Bring every requested output up to date. The result contains the errors of steps.

    `servers` lends the processes from which workers are forked. If it is None, the build starts these processes.

    Raises UsageError, before any step runs, if a step can run neither here nor on a worker of a scheduler. With
    ``--keep-going``, the models without such a step are built, and the result contains the errors of the other models. With
    ``--frozen``, raises FrozenError if a step would have to run, if a result is not the locked one, or if an output cannot
    be read from the caches. Raises Interrupted if the user stops the build.
    """
    request, start_s = workspace.request, time.monotonic()
    stages = stages_until(request.until)
    with workspace.store.session():
        with watcher.phase("plan"):
            plans = workspace.plans()
        pending = _pending_steps(plans, stages)
        if pending and request.frozen and _has_new_record(workspace, plans):  # another build has finished a step
            plans = workspace.plans()
            pending = _pending_steps(plans, stages)
        if pending and request.frozen:
            raise _pending_steps_error(workspace, pending)
        if request.frozen:
            _refuse_unlocked_results(workspace, plans, stages)
        unfit_errors = _unfit_errors(workspace, plans) if pending else {}
        plans = {name: plan for name, plan in plans.items() if name not in unfit_errors}
        pending = _pending_steps(plans, stages)
        outcome = Outcome(dict(plans), stages=stages)
        farm_messages: list[str] = []
        try:
            with farm_of_build(workspace, pending, watcher, farm_messages) as farm:
                _execute_steps(workspace, outcome, watcher, farm, servers)
            with watcher.phase("send to remotes"):
                workspace.store.finish(keeps_pointers=bool(outcome.failed))
        except KeyboardInterrupt as stop:
            raise Interrupted(outcome, workspace.store.unsent_count) from stop
        finally:  # the history is also saved after an interrupted build
            try:
                _save_history(workspace, outcome)
            finally:
                workspace.store.close()
    if request.frozen:
        _refuse_unreadable_outputs(workspace, outcome)
    result = BuildResult(outcome, remotes=workspace.store.reports())
    for name in plans:
        result.written += outcome.written.get(name, [])
    result.errors += [*outcome.unwritten.values(), *unfit_errors.values()]
    result.warnings += workspace.store.warnings()
    result.warnings += farm_messages
    result.warnings += quantization_warnings(outcome.plans.values())
    result.warnings += operator_warnings(outcome.plans.values())
    if workspace.lock_file is not None:
        result.warnings += differing_engines(workspace.lock_file.lock, outcome.plans.values())
    result.duration_s = time.monotonic() - start_s
    return result


def _pending_steps(plans: Mapping[str, ModelPlan], stages: Collection[str]) -> list[Step]:
    steps = [step for plan in plans.values() for step in plan.steps.values()]
    return [step for step in steps if step.verdict != "hit" and step.stage in stages]


def _unfit_errors(workspace: Workspace, plans: Mapping[str, ModelPlan]) -> dict[str, TrtbuildError]:
    """Name → error of each model with a step that can run nowhere. Raises the error, unless ``--keep-going`` is set and
    another model can be built."""
    if workspace.request.keep_going:
        errors = {name: workspace.environment_error({name: plan}) for name, plan in plans.items()}
        unfit = {name: error for name, error in errors.items() if error is not None}
        if len(unfit) < len(plans):
            for name, error in unfit.items():
                error.text = f"{name} is not built: {error.text}"
            return unfit
    workspace.check_environment(plans)
    return {}


def _pending_steps_error(workspace: Workspace, pending: Sequence[Step]) -> FrozenError:
    lines = _listed([f"{step.id}: {step.reason.text}" for step in pending], "trtbuild plan")
    warnings = workspace.store.warnings()
    doctor_hint = "run trtbuild doctor to examine the remotes; or " if warnings and workspace.store.readers else ""
    return FrozenError(
        "--frozen is set, but these steps would have to run:\n    " + "\n    ".join(lines),
        hint=f"{doctor_hint}build without --frozen, or fill the cache first",
        warnings=warnings,
    )


def _refuse_unlocked_results(workspace: Workspace, plans: Mapping[str, ModelPlan], stages: Collection[str]) -> None:
    """Raise FrozenError if the results of a locked model have other keys than the locked ones."""
    lock = workspace.lock_file.lock if workspace.lock_file is not None else None
    unlocked = [step.id for step in unlocked_results(lock, plans.values(), stages)]
    if unlocked:
        raise FrozenError(
            f"--frozen is set, but these results are not those of {LOCK_FILE}:\n    "
            + "\n    ".join(_listed(unlocked, "trtbuild lock --check")),
            hint="trtbuild lock --check shows the differences; trtbuild lock locks these results",
            warnings=workspace.store.warnings(),
        )


def _listed(lines: Sequence[str], command: str) -> list[str]:
    """The first `MAX_LISTED` of `lines`. If there are more, a line names the command that shows all of them."""
    rest = len(lines) - MAX_LISTED
    return [*lines[:MAX_LISTED], *([f"and {rest} more: {command}"] if rest > 0 else [])]


def _refuse_unreadable_outputs(workspace: Workspace, outcome: Outcome) -> None:
    """Raise FrozenError if outputs were not written because a blob is missing or damaged."""
    unreadable_outputs = {
        name: error for name, error in outcome.unwritten.items() if isinstance(error, BlobMissing | EntryCorrupt)
    }
    if unreadable_outputs:
        raise FrozenError(
            "--frozen is set, and these outputs cannot be read from the caches:\n    "
            + "\n    ".join(f"{name}: {error.text}" for name, error in unreadable_outputs.items()),
            hint="a remote has their records but not their blobs: build without --frozen, then run trtbuild cache push",
            warnings=workspace.store.warnings(),
        )


def _has_new_record(workspace: Workspace, plans: Mapping[str, ModelPlan]) -> bool:
    """Whether another build has meanwhile stored the record of a step that was planned to run."""
    records = [
        workspace.lookups.find_new_record(plan, step)
        for plan in plans.values()
        for step in plan.steps.values()
        if step.verdict == "run"
    ]
    return any(record is not None for record in records)


def _execute_steps(
    workspace: Workspace, outcome: Outcome, watcher: Watcher, farm: Farm | None, servers: ServerSource | None
) -> None:
    """Run the steps, and write the outputs. With `farm`, the workers of a scheduler compile the engines."""
    request = workspace.request
    jobs = request.jobs or os.cpu_count() or 1
    estimates = Estimates(workspace.history, workspace.project, workspace.models)
    pool = WorkerPool(workspace.store.local.root, workspace.project, servers)
    unchecked = UncheckedSteps(workspace.lookups)
    gpus = GpuLimit(MemoryLimit(estimates.estimate_bytes))

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None]) -> StepRun:
        with _typed_errors(step), workspace.store.building(step.key or step.id):
            record = workspace.lookups.find_new_record(plan, step)
            if record is not None:
                ran = StepRun(record, 0.0, source=workspace.lookups.source_of(record.recipe.key))
                workspace.lookups.note_run(step.id, record)
                return ran
            # with `farm`, the records of engines are published at once, so they could not wait for a check
            may_announce = jobs > 1 and farm is None
            with unchecked.running(step, plan, announce if may_announce else None) as publication:

                def start() -> StepRun:
                    facts, lookups, gpu = workspace.facts[plan.model.name], workspace.lookups, gpus.gpu_of(step)
                    return run_step(step, plan, facts, lookups, workspace.store, pool, publication, gpu=gpu, farm=farm)

                is_local = farm is None or step.stage != "engine"
                ran = _run_and_keep_log(step, plan, workspace, start, is_local=is_local)
                publication.finish(ran.record)
                return ran

    def write(plan: ModelPlan) -> list[WrittenOutput]:
        if request.until not in (None, STAGES[-1]):
            return []
        with watcher.phase(f"outputs {plan.model.name}"):
            written = write_outputs(workspace, plan, pool)
        watcher.outputs_written(written)
        return written

    def abort() -> None:
        pool.close(kill=True)
        if farm is not None:
            farm.cancel()

    # the command line turns the garbage collector off (cli/main.py), but a build runs for a long time and makes many plans
    gc.freeze()
    gc.enable()
    threads, limit = threads_and_limit(farm, gpus, jobs)
    watcher.build_started(jobs, estimates.last_duration_s)
    try:
        execute(
            outcome,
            Callbacks(workspace.plan, run, write, abort, estimates.last_duration_s),
            jobs=threads,
            watcher=watcher,
            keep_going=request.keep_going,
            limit=limit,
            rebuild_lost=not request.frozen,
        )
    finally:
        pool.close(kill=True)
        for step_id in unchecked.unpublished_ids:  # they count as not run, because no later build finds their records
            outcome.ran.pop(step_id, None)
        outcome.unpublished_keys = unchecked.unpublished_keys


def _run_and_keep_log(
    step: Step, plan: ModelPlan, workspace: Workspace, start: Callable[[], StepRun], *, is_local: bool
) -> StepRun:
    """Call `start`, which runs the step, and keep the log of its worker. `is_local`: this machine runs the step.

    An error also gets a line of the manifest, the log file, and the operators that TensorRT refused.
    """
    folder = workspace.project / LOG_FOLDER
    try:
        ran = _run_with_typed_errors(step, start, is_local=is_local)
    except TrtbuildError as error:
        if isinstance(error, ToolchainError) and error.nodes:
            refused_nodes.name_operators(error, plan, step, workspace.lookups)
        place_in_manifest(error, plan.model, step)
        log_file = logs.keep(folder, step.id, error.worker_log)
        error.log_file = str(log_file.relative_to(workspace.project)) if log_file is not None else None
        raise
    if step.stage != "package":
        logs.keep(folder, step.id, ran.log)
    return ran


def _run_with_typed_errors(step: Step, start: Callable[[], StepRun], *, is_local: bool) -> StepRun:
    """Call `start`, unless this machine has too little memory for the step. Each error is a TrtbuildError."""
    size_bytes = weights_bytes(step) if is_local else 0
    with _typed_errors(step):
        refuse_small_memory(
            step.id,
            size_bytes,
            memory.least_bytes(step.stage, size_bytes),
            memory.free_with_swap_bytes() if size_bytes else None,
        )
        return start()


@contextlib.contextmanager
def _typed_errors(step: Step) -> Iterator[None]:
    """Convert each error of the block to a TrtbuildError."""
    try:
        yield
    except TrtbuildError:
        raise
    except OSError as error:
        raise StoreError(f"{step.id}: {error}", hint="check the disk and the permissions of the cache") from error
    except Exception as error:  # an error of one step must not end the other steps
        raise InternalError(f"{step.id}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def _save_history(workspace: Workspace, outcome: Outcome) -> None:
    """Save the recipes of the hits and of the steps that ran, for the reasons and estimates of later builds.

    The recipe of a package is saved only if the outputs were written. By this recipe, later builds find the files that this
    build wrote (`driver.outputs`)."""
    for plan in outcome.plans.values():
        for step in plan.steps.values():
            if step.recipe is None or (step.stage == "package" and not outcome.written.get(plan.model.name)):
                continue
            if step.id in outcome.ran:
                reason, ran = outcome.ran[step.id]
                recipe = step.recipe if step.verdict == "hit" else ran.record.recipe
                last_run = LastRun(reason, round(ran.duration_s, 3), ran.peak_rss_bytes or None)
                workspace.history.note_recipe(step.id, recipe, last_run, ran.uncacheable)
            elif step.verdict == "hit":
                workspace.history.note_recipe(step.id, step.recipe, None, None)
    with contextlib.suppress(OSError):
        workspace.history.save()
    workspace.lookups.save_trail()
