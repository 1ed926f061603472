"""``trtbuild lock``: what is planned now, written down; and which records a lock keeps from collection.

Rules
1. What is locked is what is there: every step is a hit, here or in a remote. Nothing is built.
2. Versions are those of the lock that is there (`driver.project.environment`); with ``--upgrade``, those that are
   installed. Of the models that are not asked for, what the lock has stays.
3. A package is for all targets of its model, so a model is locked for all of them.
4. Pinned are all locked records, and the links that lead to a locked trace: without them nobody would find it. Links are
   read from the store, by what the trace has seen: no file of the project is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.planning.locks import (
    LOCKED_OUTPUTS,
    NAME,
    Lock,
    LockedModel,
    LockedStep,
    LockedTarget,
    differences,
)
from trtbuild.core.recipes import chain
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.project import locked, wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import LockFileError, StoreError, UsageError
from trtbuild.toolchain.libraries import table

Document = dict[str, Any]


def lock(request: Request, *, check: bool) -> Document:
    """``trtbuild.locked/1``. `ok` is false when something is missing, or with `check` when the lock is out of date.

    Raises UsageError: for a lock file that cannot be read, or that cannot be written.
    """
    if request.targets:
        raise UsageError("a lock is for all targets of a model", hint="leave --target out")
    started = time.monotonic()
    before = _before(request)
    workspace = Workspace(replace(request, relock=True))
    workspace.store.only_asks()
    plans = workspace.plans()
    missing = [step for plan in plans.values() for step in plan.steps.values() if step.verdict != "hit"]
    now = _together(workspace, plans, before)
    found = [] if missing and not check else list(differences(before, _as_far_as_known(now, plans, before)))
    stale = [entry for entry in found if not entry.for_information]
    written = False
    if not missing and not check:
        written = locked.write(workspace.project, now)
    return {
        "schema": "trtbuild.locked/1",
        "ok": not missing and not (check and (stale or before is None)),
        "duration_s": round(time.monotonic() - started, 3),
        "path": NAME,
        "existed": before is not None,
        "check": check,
        "written": written,
        "models": [] if missing else [_summary(name, now.models[name]) for name in plans],
        "missing": [_missing(step) for step in missing],
        "differences": [entry.to_json() for entry in (stale if check else found)],
        "next": _next(request, bool(missing), bool(stale)) if missing or check else [],
        "errors": [],
        "warnings": [],
    }


def _next(request: Request, missing: bool, stale: bool) -> list[str]:
    """What to type when something is missing, or the lock is out of date."""
    how = " --upgrade" if request.upgrade else ""
    return [f"trtbuild build{how}"] * missing + [f"trtbuild lock{how}"] * (missing or stale)


def _before(request: Request) -> Lock | None:
    """The lock that is there. One that cannot be read is none where a whole new one is written."""
    try:
        found = locked.read(request.project.absolute())
    except LockFileError:
        if not request.upgrade or request.models:
            raise
        return None
    return found.lock if found is not None else None


def _together(workspace: Workspace, plans: Mapping[str, ModelPlan], before: Lock | None) -> Lock:
    """What is planned, and what the lock has of the project's other models (rule 2)."""
    models = {name: _model(workspace, plan) for name, plan in plans.items()}
    if before is not None and workspace.request.models:
        models = {**before.models, **models}
    versions = {step: number for step, number in STEP_VERSIONS.items() if step != "verify"}  # no step of a build
    return Lock(table.host_platform(), versions, dict(workspace.manifests), models)


def _model(workspace: Workspace, plan: ModelPlan) -> LockedModel:
    name = plan.model.name
    toolchains = workspace.facts[name].toolchains
    steps = {
        step.id: LockedStep(step.key, _outputs(step))
        for step in plan.steps.values()
        if step.verdict == "hit" and step.key is not None
    }
    targets = {target.name: LockedTarget(target.toolchain, toolchains[target].version) for target in plan.model.targets}
    return LockedModel(_versions(workspace, plan), targets, steps)


def _versions(workspace: Workspace, plan: ModelPlan) -> dict[str, str]:
    """The torch-side versions that the trace was made with."""
    trace = plan.steps[f"{plan.model.name}/trace"]
    made = dict(trace.recipe.parts).get("versions") if trace.recipe is not None else None
    known = made if isinstance(made, Mapping) else workspace.facts[plan.model.name].versions or {}
    return {name: str(version) for name, version in known.items()}


def _outputs(step: Step) -> dict[str, Any]:
    record = step.record
    return {name: record.outputs[name] for name in LOCKED_OUTPUTS.get(step.stage, ())} if record is not None else {}


def _as_far_as_known(now: Lock, plans: Mapping[str, ModelPlan], before: Lock | None) -> Lock:
    """`now`, and of steps that are not known yet what was locked: they are missing, and not different."""
    if before is None:
        return now
    models = dict(now.models)
    for name, plan in plans.items():
        if name in before.models and any(step.verdict != "hit" for step in plan.steps.values()):
            steps = {**before.models[name].steps, **models[name].steps}
            models[name] = replace(models[name], steps=steps)
    return replace(now, models=models)


def _summary(name: str, model: LockedModel) -> Document:
    engines = [step for step in model.steps.values() if "plan" in step.outputs]
    return {
        "model": name,
        "steps": len(model.steps),
        "engines": len(engines),
        "engine_bytes": sum(step.outputs["plan"].size for step in engines),
        "targets": sorted(model.targets),
    }


def _missing(step: Step) -> Document:
    return {"id": step.id, "key": step.key, "verdict": step.verdict, "reason": step.reason.to_json()}


# -- collection


def pinned_keys(project: Path, path: Path | None = None, store: Store | None = None) -> frozenset[str]:
    """The keys of all records that the project's lock file, or the one at `path`, keeps (rule 4); none where there is none.

    `store` is where links are read, the project's local one unless it is given. Raises LockFileError, StoreUnavailable, and
    UsageError when there is no file at `path`.
    """
    found = locked.read(project, path)
    if found is None:
        if path is not None:
            raise UsageError(f"there is no lock file {str(path)!r}", hint="trtbuild lock writes one")
        return frozenset()
    place: Store = wiring.open_local(project) if store is None else store
    links = [key for model in found.lock.models.values() for key in _links(model, place)]
    return frozenset(found.lock.by_key) | frozenset(links)


def _links(model: LockedModel, store: Store) -> Iterator[str]:
    """The keys of the links that lead to a model's trace: with its versions, and by its files alone."""
    try:
        record = store.get_record(model.trace) if model.trace is not None else None
    except StoreError:  # it is not there to be found
        return
    if record is None:
        return
    declared = [part for part in record.recipe.parts if ":" not in part[0]]
    seen = {name: value for name, value in record.recipe.parts if ":" in name}
    yield from _chain(declared, seen, store)
    yield from _chain([part for part in declared if part[0] != "versions"], seen, store)


def _chain(declared: chain.Declared, seen: Mapping[str, Any], store: Store) -> list[str]:
    found: list[str] = []

    def read(recipe: Recipe) -> Sequence[Dependency] | None:
        try:
            record = store.get_record(recipe.key)
            named = None if record is None else chain.parse_link(store.get_bytes(record.outputs["next"].sha256))
        except (StoreError, KeyError, ValueError):
            return None
        if named is not None:
            found.append(recipe.key)
        return named

    chain.follow(declared, read, lambda dependency: str(seen.get(dependency.part, "")))
    return found
