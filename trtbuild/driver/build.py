"""The commands' work: plan and build a project. Everything a user sees is decided by the caller (`trtbuild.cli`)."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild import manifest
from trtbuild.core.graph import Step
from trtbuild.core.nearest import nearest
from trtbuild.core.planning import Facts, ModelPlan, plan_model
from trtbuild.core.record import Record
from trtbuild.core.shapes import ShapePlan, derive
from trtbuild.core.spec import Model, Target
from trtbuild.driver import environment, outputs, wiring
from trtbuild.driver.executor import MENDS, Outcome, Watcher, execute
from trtbuild.driver.history import History
from trtbuild.driver.lookups import StoreLookups
from trtbuild.driver.report import BuildResult, Written
from trtbuild.driver.steps import Ran, run_step
from trtbuild.driver.workers import WorkerPool
from trtbuild.errors import (
    BlobMissing,
    EntryCorrupt,
    FrozenError,
    InternalError,
    StoreError,
    ToolchainMissing,
    TrtbuildError,
    UsageError,
)
from trtbuild.store.fingerprint import FileDigests
from trtbuild.store.local import LocalStore


@dataclass(frozen=True)
class Request:
    """What a command is asked: the project's directory, which manifests, models and targets, and how."""

    project: Path
    files: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    jobs: int | None = None
    keep_going: bool = False
    force: bool = False
    frozen: bool = False


class Workspace:
    """A project that is open for one command: its models, its store, its history, and the plans made so far."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.project = request.project.absolute()
        if not self.project.is_dir():
            raise UsageError(f"{request.project} is no directory", hint="-C names the project's directory")
        self.models = _selected(manifest.load(self.project, request.files or None).models, request)
        self.shapes = {name: _shapes(model) for name, model in self.models.items()}
        self.facts: Facts = environment.gather(list(self.models.values()))
        self.store: LocalStore = wiring.open_store(wiring.store_root(self.project))
        self.history = History(self.project / wiring.STATE)
        self.digests: FileDigests = wiring.file_digests(self.project)
        self.look: StoreLookups = wiring.lookups(
            self.project, self.store, self.history, self.digests, force=request.force
        )

    def plan(self, name: str) -> ModelPlan:
        """The plan for one model, as things stand."""
        return plan_model(self.models[name], self.shapes[name], self.facts, self.look, self.in_place)

    def plans(self) -> dict[str, ModelPlan]:
        """The plans for all models that were asked for."""
        return {name: self.plan(name) for name in self.models}

    def environment_error(self, plans: Mapping[str, ModelPlan]) -> TrtbuildError | None:
        """What this machine lacks for doing the plans, if anything."""
        try:
            self.check_environment(plans)
        except TrtbuildError as error:
            return error
        return None

    def check_environment(self, plans: Mapping[str, ModelPlan]) -> None:
        """Raise before any work when a step has to run that cannot run here."""
        wanted: list[tuple[str, Target]] = []
        for name, plan in plans.items():
            stages = {step.stage for step in plan.steps.values() if step.verdict == "run"}
            if stages & {"trace", "lower", "partition", "convert"} and self.facts.versions is None:
                missing = " and ".join(environment.missing_on_torch_side())
                raise ToolchainMissing(
                    f"model {name!r} has to be traced or converted, but {missing} is not installed",
                    hint="pip install 'trtbuild[torch]'",
                )
            targets = {target.name: target for target in self.models[name].targets}
            for step in plan.steps.values():
                if step.stage == "engine" and step.verdict in ("run", "unknown") and step.target in targets:
                    wanted.append((name, targets[step.target]))
        environment.check_targets(self.models, list(dict.fromkeys(wanted)))

    def files_of(self, model: Model, record: Record) -> list[tuple[str, str, list[outputs.OutputFile]]]:
        """(kind, path, files) of each output of a model, from its package's record."""
        index: Mapping[str, Any] = json.loads(self.look.blob(record.outputs["index"].sha256))
        return [(kind, path, outputs.output_files(kind, path, index, record)) for kind, path in model.outputs]

    def write_outputs(self, plan: ModelPlan) -> list[Written]:
        """Bring the outputs of a finished model up to date."""
        package = plan.package
        if package is None or package.record is None:
            raise AssertionError("outputs are written when the package is there")
        needed = plan.contents.blobs() if plan.contents is not None else {}
        self.look.keep_file_weights(plan.model, [sha256 for sha256 in needed if sha256 in plan.file_weights])
        written = []
        for kind, path, files in self.files_of(plan.model, package.record):
            changed = outputs.write_output(
                self.project, kind, path, files, self.store, self.digests.sha256, self.history.recipe(package.id)
            )
            written.append(Written(plan.model.name, kind, path, changed))
        return written

    def in_place(self, model: Model, record: Record) -> bool:
        """Whether all files of all outputs of a model are where they belong, with the right content."""
        if not self.look.has(record.outputs["index"].sha256):
            return False
        try:
            found = self.files_of(model, record)
        except (BlobMissing, EntryCorrupt):  # its index is put aside now, and is made again
            return False
        return all(outputs.in_place(self.project, files, self.digests.sha256) for _, _, files in found)


def build(workspace: Workspace, watcher: Watcher) -> BuildResult:
    """Bring every output that was asked for up to date.

    Raises UsageError before any work when something cannot be built here, and FrozenError when something would have
    to be built under ``--frozen``. What goes wrong in a step is in the result.
    """
    request, started = workspace.request, time.monotonic()
    with workspace.store.session():
        plans = workspace.plans()
        to_do = [step for plan in plans.values() for step in plan.steps.values() if step.verdict != "hit"]
        if to_do and request.frozen:
            raise FrozenError(
                "--frozen, and these steps would have to run:\n    "
                + "\n    ".join(f"{step.id}: {step.reason.text}" for step in to_do),
                hint="build without --frozen, or fill the cache first",
            )
        if to_do:
            workspace.check_environment(plans)
            outcome = _execute(workspace, plans, watcher)
        else:
            outcome = Outcome(dict(plans))
        result = BuildResult(outcome)
        for _ in range(MENDS):
            lost = _write_all(workspace, outcome, result)
            if not lost or request.frozen:
                break
            # what could not be read is in quarantine now: who left it runs again
            again = _execute(workspace, {name: workspace.plan(name) for name in lost}, watcher)
            outcome.plans.update(again.plans)
            outcome.ran.update(again.ran)
            outcome.failed.update(again.failed)
        result.errors += lost.values()
    _remember(workspace, outcome)
    result.duration_s = time.monotonic() - started
    return result


def _execute(workspace: Workspace, plans: Mapping[str, ModelPlan], watcher: Watcher) -> Outcome:
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)

    def run(step: Step, plan: ModelPlan) -> Ran:
        with workspace.store.building(step.key or step.id):
            meanwhile = workspace.look.made_meanwhile(plan, step)
            if meanwhile is not None:
                ran = Ran(meanwhile, 0.0, source="local")
            else:
                ran = _run_step(step, plan, workspace, pool)
        workspace.look.ran(step.id, ran.record)
        return ran

    request = workspace.request
    try:
        return execute(
            plans,
            workspace.plan,
            run,
            jobs=request.jobs or os.cpu_count() or 1,
            keep_going=request.keep_going,
            watcher=watcher,
            abort=lambda: pool.close(kill=True),
        )
    finally:
        pool.close(kill=True)


def _run_step(step: Step, plan: ModelPlan, workspace: Workspace, pool: WorkerPool) -> Ran:
    try:
        return run_step(step, plan, workspace.facts, workspace.look, workspace.store, pool)
    except TrtbuildError:
        raise
    except OSError as error:
        raise StoreError(f"{step.id}: {error}", hint="check the disk and the permissions of the cache") from error
    except Exception as error:  # one step's fault must not take the others with it
        raise InternalError(f"{step.id}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def _write_all(workspace: Workspace, outcome: Outcome, result: BuildResult) -> dict[str, TrtbuildError]:
    """Write the outputs of all models that are done and not written yet. Returns those for which a blob cannot be read."""
    lost: dict[str, TrtbuildError] = {}
    done = {written.model for written in result.written}
    for name, plan in outcome.plans.items():
        if name not in done and plan.steps and all(step.verdict == "hit" for step in plan.steps.values()):
            try:
                result.written += workspace.write_outputs(plan)
            except (BlobMissing, EntryCorrupt) as error:
                lost[name] = error
            except (StoreError, OSError) as error:
                known = (
                    error if isinstance(error, TrtbuildError) else StoreError(f"outputs of {plan.model.name}: {error}")
                )
                result.errors.append(known)
    return lost


def _remember(workspace: Workspace, outcome: Outcome) -> None:
    for plan in outcome.plans.values():
        for step in plan.steps.values():
            if step.recipe is None or step.verdict != "hit":
                continue
            ran = outcome.ran.get(step.id)
            said = {"reason": ran[0].to_json(), "duration_s": round(ran[1].duration_s, 3)} if ran else None
            workspace.history.note(step.id, step.recipe, said, ran[1].uncacheable if ran else None)
    with contextlib.suppress(OSError):
        workspace.history.save()


def _selected(models: Sequence[Model], request: Request) -> dict[str, Model]:
    by_name = {model.name: model for model in models}
    for name in request.models:
        if name not in by_name:
            raise UsageError(f"no model is called {name!r}", hint=_did_you_mean(name, list(by_name)))
    chosen = {name: by_name[name] for name in (request.models or by_name)}
    if not request.targets:
        return chosen
    known = sorted({target.name for model in chosen.values() for target in model.targets})
    for name in request.targets:
        if name not in known:
            raise UsageError(f"no target is called {name!r}", hint=_did_you_mean(name, known))
    return {
        name: _for_targets(model, request.targets) for name, model in chosen.items() if _has(model, request.targets)
    }


def _has(model: Model, targets: Sequence[str]) -> bool:
    return any(target.name in targets for target in model.targets)


def _for_targets(model: Model, targets: Sequence[str]) -> Model:
    from dataclasses import replace

    return replace(model, targets=tuple(target for target in model.targets if target.name in targets))


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return (f"did you mean {near!r}? " if near else "") + f"there are: {', '.join(known)}"


def _shapes(model: Model) -> ShapePlan:
    plan, problems = derive(model.inputs, model.dims, model.profiles)
    if plan is None:
        raise UsageError(
            "; ".join(problem.text for problem in problems), file=model.origin.file, line=model.origin.line
        )
    return plan
