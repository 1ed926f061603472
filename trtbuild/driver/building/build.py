"""A build: plan, run the steps that are not hits, write the outputs. The caller (`trtbuild.cli`) decides what to print."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trtbuild.core.planning.graph import STAGES, ModelPlan, Reason, Step, stages_until
from trtbuild.core.planning.priorities import weights_bytes
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building.execution import memory
from trtbuild.driver.building.execution.estimates import Estimates
from trtbuild.driver.building.execution.executor import Callbacks, execute
from trtbuild.driver.building.execution.gpu_limit import GpuLimit
from trtbuild.driver.building.execution.memory import MemoryLimit
from trtbuild.driver.building.farm_of_build import farm_of_build
from trtbuild.driver.building.operator_warnings import operator_warnings
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.building.quantization_warnings import quantization_warnings
from trtbuild.driver.building.steps import exported_files, refused_nodes
from trtbuild.driver.building.steps.run_step import run_step
from trtbuild.driver.building.steps.unchecked import UncheckedSteps
from trtbuild.driver.farm.farm import Farm
from trtbuild.driver.farm.limit import MOST_JOBS, FarmLimit
from trtbuild.driver.project import wiring
from trtbuild.driver.project.blame import place_in_manifest
from trtbuild.driver.project.history import LastRun
from trtbuild.driver.project.locked import differing_engines
from trtbuild.driver.project.outcome import Outcome, StepRun, WrittenOutput
from trtbuild.driver.project.shortage import refuse_small_memory
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.workers import logs
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

__all__ = ["Request", "Workspace", "build"]

#: The largest number of steps that the error of `--frozen` lists.
MAX_LISTED = 20


class Interrupted(KeyboardInterrupt):
    """A build was interrupted. `unsent` is the number of records that were not yet sent to a remote cache.

    Later builds do not send these records, but ``trtbuild cache push`` does.
    """

    def __init__(self, unsent: int) -> None:
        super().__init__()
        self.unsent = unsent


def build(workspace: Workspace, watcher: Watcher) -> BuildResult:
    """Bring every requested output up to date.

    The result contains the errors of steps. Raises UsageError, before any step runs, if a step cannot run on this machine.
    Raises FrozenError if ``--frozen`` is set, and a step would have to run or an output cannot be read from the caches.
    Raises Interrupted if the user stops the build.
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
            lines = [f"{step.id}: {step.reason.text}" for step in pending[:MAX_LISTED]]
            if len(pending) > MAX_LISTED:
                lines.append(f"and {len(pending) - MAX_LISTED} more: trtbuild plan")
            warnings = workspace.store.warnings()
            doctor_hint = (
                "run trtbuild doctor to examine the remotes; or " if warnings and workspace.store.readers else ""
            )
            raise FrozenError(
                "--frozen is set, but these steps would have to run:\n    " + "\n    ".join(lines),
                hint=f"{doctor_hint}build without --frozen, or fill the cache first",
                warnings=warnings,
            )
        if pending:
            workspace.check_environment(plans)
        outcome = Outcome(dict(plans), stages=stages)
        farm_messages: list[str] = []
        try:
            with farm_of_build(workspace, pending, watcher, farm_messages) as farm:
                _execute_steps(workspace, outcome, watcher, farm)
            with watcher.phase("send to remotes"):
                workspace.store.finish()
        except KeyboardInterrupt as stop:
            raise Interrupted(workspace.store.unsent_count) from stop
        finally:  # the history is also saved after an interrupted build
            _save_history(workspace, outcome)
            workspace.store.close()
    unreadable_outputs = {
        name: error for name, error in outcome.unwritten.items() if isinstance(error, BlobMissing | EntryCorrupt)
    }
    if request.frozen and unreadable_outputs:
        raise FrozenError(
            "--frozen is set, and these outputs cannot be read from the caches:\n    "
            + "\n    ".join(f"{name}: {error.text}" for name, error in unreadable_outputs.items()),
            hint="a remote has their records but not their blobs: build without --frozen, then run trtbuild cache push",
            warnings=workspace.store.warnings(),
        )
    result = BuildResult(outcome, remotes=workspace.store.reports())
    for name in plans:
        result.written += outcome.written.get(name, [])
    result.errors += outcome.unwritten.values()
    result.warnings += workspace.store.warnings()
    result.warnings += farm_messages
    result.warnings += quantization_warnings(outcome.plans.values())
    result.warnings += operator_warnings(outcome.plans.values())
    if workspace.lock_file is not None:
        result.warnings += differing_engines(workspace.lock_file.lock, outcome.plans.values())
    result.duration_s = time.monotonic() - start_s
    return result


def _pending_steps(plans: Mapping[str, ModelPlan], stages: Collection[str]) -> list[Step]:
    """The steps of `stages` that are not hits."""
    steps = [step for plan in plans.values() for step in plan.steps.values()]
    return [step for step in steps if step.verdict != "hit" and step.stage in stages]


def _has_new_record(workspace: Workspace, plans: Mapping[str, ModelPlan]) -> bool:
    """Whether another build has stored a record for one of the steps that were planned to run."""
    records = [
        workspace.lookups.find_new_record(plan, step)
        for plan in plans.values()
        for step in plan.steps.values()
        if step.verdict == "run"
    ]
    return any(record is not None for record in records)


def _execute_steps(workspace: Workspace, outcome: Outcome, watcher: Watcher, farm: Farm | None) -> None:
    """Run the steps of the plans in `outcome`, and write the outputs. With `farm`, its workers compile the engines."""
    request = workspace.request
    jobs = request.jobs or os.cpu_count() or 1
    estimates = Estimates(workspace.history, workspace.project, workspace.models)
    pool = WorkerPool(workspace.store.local.root, workspace.project)
    unchecked = UncheckedSteps(workspace.lookups)
    gpus = GpuLimit(MemoryLimit(estimates.estimate_bytes))

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None]) -> StepRun:
        with workspace.store.building(step.key or step.id):
            record = workspace.lookups.find_new_record(plan, step)
            if record is not None:
                ran = StepRun(record, 0.0, source=workspace.lookups.source_of(record.recipe.key))
                workspace.lookups.note_run(step.id, record)
                return ran
            may_announce = jobs > 1 and farm is None  # the workers of a scheduler publish the records of engines
            with unchecked.running(step, plan, announce if may_announce else None) as publication:

                def start() -> StepRun:
                    facts, lookups, gpu = workspace.facts[plan.model.name], workspace.lookups, gpus.gpu_of(step)
                    return run_step(step, plan, facts, lookups, workspace.store, pool, publication, gpu=gpu, farm=farm)

                ran = _run_step(step, plan, workspace, start, uses_memory=farm is None or step.stage != "engine")
                publication.finish(ran.record)
                return ran

    def write(plan: ModelPlan) -> list[WrittenOutput]:
        if request.until not in (None, STAGES[-1]):
            return []
        with watcher.phase(f"outputs {plan.model.name}"):
            written = _write_outputs(workspace, plan, pool)
        watcher.outputs_written(written)
        return written

    def abort() -> None:
        pool.close(kill=True)
        if farm is not None:
            farm.cancel()

    # The command line turns the collector off (cli/main.py). A build runs for a long time and creates many plans.
    gc.freeze()
    gc.enable()
    watcher.build_started(jobs, estimates.last_duration_s)
    try:
        execute(
            outcome,
            Callbacks(workspace.plan, run, write, abort, estimates.last_duration_s),
            jobs=jobs if farm is None else jobs + MOST_JOBS,
            watcher=watcher,
            keep_going=request.keep_going,
            limit=gpus if farm is None else FarmLimit(farm, gpus, jobs),
            rebuild_lost=not request.frozen,
        )
    finally:
        pool.close(kill=True)
        for step_id in unchecked.unpublished_ids:  # they count as not run: no later build finds their records
            outcome.ran.pop(step_id, None)


def _run_step(
    step: Step, plan: ModelPlan, workspace: Workspace, start: Callable[[], StepRun], *, uses_memory: bool
) -> StepRun:
    """Run a step by `start`, keep its log, and complete its error. `uses_memory`: whether it runs on this machine."""
    folder = workspace.project / wiring.LOG_FOLDER
    try:
        ran = _run_with_typed_errors(step, start, uses_memory=uses_memory)
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


def _run_with_typed_errors(step: Step, start: Callable[[], StepRun], *, uses_memory: bool) -> StepRun:
    size_bytes = weights_bytes(step) if uses_memory else 0
    try:
        refuse_small_memory(
            step.id,
            size_bytes,
            memory.least_bytes(step.stage, size_bytes),
            memory.free_with_swap_bytes() if size_bytes else None,
        )
        return start()
    except TrtbuildError:
        raise
    except OSError as error:
        raise StoreError(f"{step.id}: {error}", hint="check the disk and the permissions of the cache") from error
    except Exception as error:  # an error of one step must not end the other steps
        raise InternalError(f"{step.id}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def _write_outputs(workspace: Workspace, plan: ModelPlan, pool: WorkerPool) -> list[WrittenOutput]:
    name = plan.model.name
    try:
        if "pt2" in dict(plan.model.outputs):
            exported_files.create_files(workspace, plan, pool)
        return workspace.write_outputs(plan)
    except TrtbuildError:
        raise
    except OSError as error:
        place = _path_in_parentheses(error.filename, workspace.project)
        raise StoreError(
            f"the outputs of model {name!r} cannot be written{place}: {error.strerror or error}",
            hint=_OUTPUT_HINTS.get(error.errno or 0, "make the outputs' directory writable")
            + "; then build again: the built engines are in the cache",
        ) from error
    except Exception as error:
        raise InternalError(f"outputs of {name}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


_OUTPUT_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "a limit on file sizes is in force (ulimit -f): raise it",
    errno.EROFS: "the file system is read-only: choose other `outputs` in the manifest",
    errno.EISDIR: "there is a directory where a file has to be written: remove it",
    errno.ENOTDIR: "there is a file where a directory has to be: remove it",
    errno.EEXIST: "there is a file where a directory has to be: remove it",
}


def _path_in_parentheses(path: object, project: Path) -> str:
    """A space and the path relative to the project, in parentheses; empty if `path` is not a string."""
    if not isinstance(path, str):
        return ""
    with contextlib.suppress(ValueError):
        return f" ({Path(path).relative_to(project)})"
    return f" ({path})"


def _save_history(workspace: Workspace, outcome: Outcome) -> None:
    for plan in outcome.plans.values():
        for step in plan.steps.values():
            ran = outcome.ran.get(step.id)
            if step.recipe is None or (step.verdict != "hit" and ran is None):
                continue
            recipe = step.recipe if step.verdict == "hit" or ran is None else ran[1].record.recipe
            workspace.history.note_recipe(
                step.id, recipe, _last_run(*ran) if ran else None, ran[1].uncacheable if ran else None
            )
    with contextlib.suppress(OSError):
        workspace.history.save()
    workspace.lookups.save_trail()


def _last_run(reason: Reason, ran: StepRun) -> LastRun:
    return LastRun(reason, round(ran.duration_s, 3), ran.peak_rss_bytes or None)
