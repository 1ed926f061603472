"""The build: plan, run what has to run, write outputs. What a user sees is decided by the caller (`trtbuild.cli`)."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path

from trtbuild.core.planning.graph import STAGES, ModelPlan, Reason, Step, stages_until
from trtbuild.driver.answers.report import BuildResult
from trtbuild.driver.building import exported_files, refused_nodes
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.building.executor import Doing, execute
from trtbuild.driver.building.experience import Experience
from trtbuild.driver.building.gpu_room import GpuRoom
from trtbuild.driver.building.memory import MemoryRoom
from trtbuild.driver.building.steps import run_step
from trtbuild.driver.project import wiring
from trtbuild.driver.project.blame import place_in_manifest
from trtbuild.driver.project.locked import departures
from trtbuild.driver.project.outcome import Outcome, Ran, Written
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

#: Of the steps that `--frozen` forbids, the error names this many.
MOST_NAMED = 20


class Interrupted(KeyboardInterrupt):
    """A build was interrupted. `unsent` records were on their way to a remote; only `cache push` sends them later."""

    def __init__(self, unsent: int) -> None:
        super().__init__()
        self.unsent = unsent


def build(workspace: Workspace, watcher: Watcher) -> BuildResult:
    """Bring every output that was asked for up to date.

    Raises UsageError before any work when something cannot be built here, and FrozenError when something would have
    to be built under ``--frozen``. What goes wrong in a step is in the result.
    """
    request, started = workspace.request, time.monotonic()
    stages = stages_until(request.until)
    with workspace.store.session():
        with watcher.phase("plan"):
            plans = workspace.plans()
        to_do = _to_do(plans, stages)
        if to_do and request.frozen and _was_there(workspace, plans):
            plans = workspace.plans()
            to_do = _to_do(plans, stages)
        if to_do and request.frozen:
            named = [f"{step.id}: {step.reason.text}" for step in to_do[:MOST_NAMED]]
            if len(to_do) > MOST_NAMED:
                named.append(f"and {len(to_do) - MOST_NAMED} more: trtbuild plan")
            warnings = workspace.store.warnings()
            looked = "trtbuild doctor looks at the remotes; or " if warnings and workspace.store.readers else ""
            raise FrozenError(
                "--frozen, and these steps would have to run:\n    " + "\n    ".join(named),
                hint=f"{looked}build without --frozen, or fill the cache first",
                warnings=warnings,
            )
        if to_do:
            workspace.check_environment(plans)
        outcome = Outcome(dict(plans), stages=stages)
        try:
            _execute(workspace, outcome, watcher)
            with watcher.phase("send to remotes"):
                workspace.store.finish()
        except KeyboardInterrupt as stop:
            raise Interrupted(workspace.store.unsent) from stop
        finally:  # of an interrupted build, too
            _remember(workspace, outcome)
            workspace.store.close()
    lost = {name: error for name, error in outcome.unwritten.items() if isinstance(error, BlobMissing | EntryCorrupt)}
    if request.frozen and lost:
        raise FrozenError(
            "--frozen, and these outputs cannot be had:\n    "
            + "\n    ".join(f"{name}: {error.text}" for name, error in lost.items()),
            hint="a remote that has their records lacks their bytes: build without --frozen, and trtbuild cache push",
            warnings=workspace.store.warnings(),
        )
    result = BuildResult(outcome, remotes=workspace.store.reports())
    for name in plans:
        result.written += outcome.written.get(name, [])
    result.errors += outcome.unwritten.values()
    result.warnings += workspace.store.warnings()
    if workspace.lock_file is not None:
        result.warnings += departures(workspace.lock_file.lock, outcome.plans.values())
    result.duration_s = time.monotonic() - started
    return result


def _to_do(plans: Mapping[str, ModelPlan], stages: Collection[str]) -> list[Step]:
    steps = [step for plan in plans.values() for step in plan.steps.values()]
    return [step for step in steps if step.verdict != "hit" and step.stage in stages]


def _was_there(workspace: Workspace, plans: Mapping[str, ModelPlan]) -> bool:
    """Whether a step that was planned to run is in the store after all, as a second look shows."""
    found = [
        workspace.look.made_meanwhile(plan, step)
        for plan in plans.values()
        for step in plan.steps.values()
        if step.verdict == "run"
    ]
    return any(record is not None for record in found)


def _execute(workspace: Workspace, outcome: Outcome, watcher: Watcher) -> None:
    request = workspace.request
    jobs = request.jobs or os.cpu_count() or 1
    experience = Experience(workspace.history, workspace.project, workspace.models)
    pool = WorkerPool(workspace.store.local.root, workspace.project)

    def run(step: Step, plan: ModelPlan) -> Ran:
        with workspace.store.building(step.key or step.id):
            meanwhile = workspace.look.made_meanwhile(plan, step)
            if meanwhile is not None:
                ran = Ran(meanwhile, 0.0, source=workspace.look.source_of(meanwhile.recipe.key))
            else:
                ran = _run_step(step, plan, workspace, pool)
        workspace.look.ran(step.id, ran.record)
        return ran

    def write(plan: ModelPlan) -> list[Written]:
        if request.until not in (None, STAGES[-1]):
            return []
        with watcher.phase(f"outputs {plan.model.name}"):
            return _write(workspace, plan, pool)

    gc.freeze()
    gc.enable()  # steps take a while, and plans are made again and again
    watcher.opened(jobs, experience.last_duration_s)
    try:
        execute(
            outcome,
            Doing(workspace.plan, run, write, lambda: pool.close(kill=True), experience.last_duration_s),
            jobs=jobs,
            watcher=watcher,
            keep_going=request.keep_going,
            room=GpuRoom(MemoryRoom(experience.estimate_bytes)),
            mend=not request.frozen,
        )
    finally:
        pool.close(kill=True)


def _run_step(step: Step, plan: ModelPlan, workspace: Workspace, pool: WorkerPool) -> Ran:
    folder = workspace.project / wiring.LOGS
    try:
        ran = _typed_run(step, plan, workspace, pool)
    except TrtbuildError as error:
        if isinstance(error, ToolchainError) and error.nodes:
            refused_nodes.say_where(error, plan, step, workspace.look)
        place_in_manifest(error, plan.model, step)
        kept = logs.keep(folder, step.id, error.worker_log)
        error.log_file = str(kept.relative_to(workspace.project)) if kept is not None else None
        raise
    if step.stage != "package":
        logs.keep(folder, step.id, ran.log)
    return ran


def _typed_run(step: Step, plan: ModelPlan, workspace: Workspace, pool: WorkerPool) -> Ran:
    try:
        return run_step(step, plan, workspace.facts[plan.model.name], workspace.look, workspace.store, pool)
    except TrtbuildError:
        raise
    except OSError as error:
        raise StoreError(f"{step.id}: {error}", hint="check the disk and the permissions of the cache") from error
    except Exception as error:  # one step's fault must not take the others with it
        raise InternalError(f"{step.id}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def _write(workspace: Workspace, plan: ModelPlan, pool: WorkerPool) -> list[Written]:
    name = plan.model.name
    try:
        if "pt2" in dict(plan.model.outputs):
            exported_files.make(workspace, plan, pool)
        return workspace.write_outputs(plan)
    except TrtbuildError:
        raise
    except OSError as error:
        place = _shown(error.filename, workspace.project)
        raise StoreError(
            f"the outputs of model {name!r} cannot be written{place}: {error.strerror or error}",
            hint=_OUTPUT_HINTS.get(error.errno or 0, "make the outputs' directory writable")
            + "; then build again: what was built is in the cache",
        ) from error
    except Exception as error:
        raise InternalError(f"outputs of {name}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


_OUTPUT_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EFBIG: "a limit on file sizes is in force (ulimit -f): raise it",
    errno.EROFS: "the file system is read-only: choose other `outputs` in the manifest",
    errno.EISDIR: "a directory is in the place of a file: remove it",
    errno.ENOTDIR: "a file is in the place of a directory: remove it",
    errno.EEXIST: "a file is in the place of a directory: remove it",
}


def _shown(path: object, project: Path) -> str:
    """`` (dist/vit)``, as far as it is known."""
    if not isinstance(path, str):
        return ""
    with contextlib.suppress(ValueError):
        return f" ({Path(path).relative_to(project)})"
    return f" ({path})"


def _remember(workspace: Workspace, outcome: Outcome) -> None:
    for plan in outcome.plans.values():
        for step in plan.steps.values():
            ran = outcome.ran.get(step.id)
            if step.recipe is None or (step.verdict != "hit" and ran is None):
                continue
            recipe = step.recipe if step.verdict == "hit" or ran is None else ran[1].record.recipe
            workspace.history.note(step.id, recipe, _said(*ran) if ran else None, ran[1].uncacheable if ran else None)
    with contextlib.suppress(OSError):
        workspace.history.save()
    workspace.look.save_trail()


def _said(reason: Reason, ran: Ran) -> dict[str, object]:
    said: dict[str, object] = {"reason": reason.to_json(), "duration_s": round(ran.duration_s, 3)}
    return {**said, "peak_rss_bytes": ran.peak_rss_bytes} if ran.peak_rss_bytes else said
