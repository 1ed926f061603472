"""``trtbuild lock`` writes the keys and digests of the current plans into the lock file.

Rules
1. A model can be locked only if all of its steps are hits, in the local store or a remote. Nothing is built.
2. Versions come from the existing lock file (`driver.project.environment`), or with ``--upgrade`` from the installed
   libraries. Entries of models that were not requested stay as they are.
3. A package contains the engines for all targets of its model, so a model is locked for all of its targets.
4. Locked records are pinned: ``trtbuild cache gc`` keeps them. A build finds the record of a calibration or a trace
   through a chain of other records, called links (`core.recipes.chain`), so the links are pinned, too. Their keys are
   computed from the observations in the found record. The project's files are not read. The ``.pt2`` files of a locked
   package are pinned, because ``--frozen`` does not make them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan, Step
from trtbuild.core.planning.locks import (
    LOCK_FILE,
    LOCKED_OUTPUTS,
    Lock,
    LockedModel,
    LockedStep,
    LockedTarget,
    differences,
    stage_of,
)
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.core.recipes.lookup_recipes import exported_file_with_any_torch
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.cache.documents import LockDifference, Locked, LockedSummary, MissingStep
from trtbuild.driver.project import locked, wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, LockFileError, RecordUntrusted, UsageError
from trtbuild.toolchain.libraries import table


def lock(request: Request, *, check: bool) -> Locked:
    """Write the lock file. With `check`, only compare the existing lock file with the current plans.

    `ok` of the result is false if a step would have to run, or with `check` if the lock file is missing or out of date.
    Raises LockFileError if the lock file cannot be read, and UsageError if it cannot be written or if targets are
    requested.
    """
    if request.targets:
        raise UsageError("a lock is for all targets of a model", hint="leave --target out")
    start_s = time.monotonic()
    old_lock = _existing_lock(request)
    workspace = Workspace(replace(request, relock=True))
    workspace.store.begin_read_only()
    plans = workspace.plans()
    missing = [step for plan in plans.values() for step in plan.steps.values() if step.verdict != "hit"]
    new_lock = _new_lock(workspace, plans, old_lock)
    all_differences = (
        [] if missing and not check else list(differences(old_lock, _with_old_steps(new_lock, plans, old_lock)))
    )
    relevant_differences = [difference for difference in all_differences if not difference.is_informational]
    written = False
    if not missing and not check:
        written = locked.write(workspace.project, new_lock)
    return Locked(
        ok=not missing and not (check and (relevant_differences or old_lock is None)),
        duration_s=round(time.monotonic() - start_s, 3),
        path=LOCK_FILE,
        existed=old_lock is not None,
        check=check,
        written=written,
        models=[] if missing else [_summary(name, new_lock.models[name]) for name in plans],
        missing=[MissingStep(id=step.id, key=step.key, verdict=step.verdict, reason=step.reason) for step in missing],
        differences=[
            LockDifference(area=entry.area, name=entry.name, change=entry.change, was=entry.was, now=entry.now)
            for entry in (relevant_differences if check else all_differences)
        ],
        next=_next_commands(request, bool(missing), bool(relevant_differences)) if missing or check else [],
        errors=[],
        warnings=workspace.store.warnings(),
    )


def _next_commands(request: Request, must_build: bool, is_out_of_date: bool) -> list[str]:
    flag = " --upgrade" if request.upgrade else ""
    commands = [f"trtbuild build{flag}"] if must_build else []
    return [*commands, f"trtbuild lock{flag}"] if must_build or is_out_of_date else []


def _existing_lock(request: Request) -> Lock | None:
    """The existing lock, or None. Raises LockFileError if the lock file cannot be read.

    If the new lock uses nothing of the file (``--upgrade`` for all models), an unreadable file counts as missing instead.
    """
    try:
        lock_file = locked.read(request.project.absolute())
    except LockFileError:
        if not request.upgrade or request.models:
            raise
        return None
    return lock_file.lock if lock_file is not None else None


def _new_lock(workspace: Workspace, plans: Mapping[str, ModelPlan], old_lock: Lock | None) -> Lock:
    """The lock with the planned models, and with the old entries of models that were not requested (rule 2)."""
    models = {name: _locked_model(workspace, plan) for name, plan in plans.items()}
    if old_lock is not None and workspace.request.models:
        models = {**old_lock.models, **models}
    # "verify" is left out, because its version has no effect on the results of a build.
    versions = {step: number for step, number in STEP_VERSIONS.items() if step != "verify"}
    return Lock(table.host_platform(), versions, dict(workspace.manifests), models)


def _locked_model(workspace: Workspace, plan: ModelPlan) -> LockedModel:
    name = plan.model.name
    toolchains = workspace.facts[name].toolchains
    steps = {
        step.id: LockedStep(step.key, _locked_outputs(step))
        for step in plan.steps.values()
        if step.verdict == "hit" and step.key is not None
    }
    targets = {target.name: LockedTarget(target.toolchain, toolchains[target].version) for target in plan.model.targets}
    return LockedModel(_trace_versions(workspace, plan), targets, steps)


def _trace_versions(workspace: Workspace, plan: ModelPlan) -> dict[str, str]:
    """The versions of Python, torch and the ONNX libraries with which the trace was or would be made."""
    trace = plan.steps[f"{plan.model.name}/trace"]
    recorded_versions = dict(trace.recipe.parts).get("versions") if trace.recipe is not None else None
    versions = (
        recorded_versions if isinstance(recorded_versions, Mapping) else workspace.facts[plan.model.name].versions or {}
    )
    return {name: str(version) for name, version in versions.items()}


def _locked_outputs(step: Step) -> dict[str, Any]:
    record = step.record
    return {name: record.outputs[name] for name in LOCKED_OUTPUTS.get(step.stage, ())} if record is not None else {}


def _with_old_steps(new_lock: Lock, plans: Mapping[str, ModelPlan], old_lock: Lock | None) -> Lock:
    """The new lock, with the old steps added to each model that has a missing step.

    The plan of such a model does not know all steps yet, and an unknown step must not count as removed.
    """
    if old_lock is None:
        return new_lock
    models = dict(new_lock.models)
    for name, plan in plans.items():
        if name in old_lock.models and any(step.verdict != "hit" for step in plan.steps.values()):
            steps = {**old_lock.models[name].steps, **models[name].steps}
            models[name] = replace(models[name], steps=steps)
    return replace(new_lock, models=models)


def _summary(name: str, model: LockedModel) -> LockedSummary:
    engines = [step for step in model.steps.values() if "plan" in step.outputs]
    return LockedSummary(
        model=name,
        steps=len(model.steps),
        engines=len(engines),
        engine_bytes=sum(step.outputs["plan"].size for step in engines),
        targets=sorted(model.targets),
    )


# -- collection


def pinned_keys(project: Path, path: Path | None = None, store: Store | None = None) -> frozenset[str]:
    """The keys of all records that the project's lock file, or the lock file at `path`, pins (rule 4).

    Empty if the project has no lock file. Links are read from `store` (default: the project's local store). Raises
    UsageError if the file `path` does not exist, and LockFileError if the lock file cannot be read. Raises
    StoreUnavailable or RemoteFault if the store cannot be read, because a collection without these keys would remove the
    links.
    """
    lock_file = locked.read(project, path)
    if lock_file is None:
        if path is not None:
            raise UsageError(f"there is no lock file {str(path)!r}", hint="trtbuild lock writes one")
        return frozenset()
    source: Store = wiring.open_local(project) if store is None else store
    link_keys = [key for model in lock_file.lock.models.values() for key in _link_keys(model, source)]
    exported_keys = [key for model in lock_file.lock.models.values() for key in _exported_file_keys(model)]
    return frozenset((*lock_file.lock.by_key, *link_keys, *exported_keys))


def _exported_file_keys(model: LockedModel) -> Iterator[str]:
    """The keys under which machines with and without torch find the ``.pt2`` files of a model's package."""
    for name, step in model.steps.items():
        if stage_of(name) == "package":
            recipe = keys.exported_file(step.outputs["index"].sha256, model.versions.get("torch"))
            yield recipe.key
            yield exported_file_with_any_torch(recipe).key


def _link_keys(model: LockedModel, store: Store) -> Iterator[str]:
    """The keys of the links that lead to a model's calibration and trace.

    Two chains lead to each record: machines without torch follow the chain whose keys contain no versions of libraries.
    """
    for stage in USER_CODE_STAGES:
        key = model.key_of(stage)
        try:
            record = store.get_record(key) if key is not None else None
        except (EntryCorrupt, RecordUntrusted):  # links to a record that cannot be used are not needed
            continue
        if record is None:
            continue
        declared = Declared.of(record.recipe)
        seen = {name: value for name, value in record.recipe.parts if ":" in name}  # the dependencies: `kind:name`
        yield from _link_keys_of_chain(declared, seen, store)
        yield from _link_keys_of_chain(declared.without_versions(), seen, store)


def _link_keys_of_chain(declared: Declared, seen: Mapping[str, Any], store: Store) -> list[str]:
    """The keys of the links of one chain. `seen`: name of a dependency → its observed state."""
    link_keys: list[str] = []

    def read(recipe: Recipe) -> Sequence[Dependency] | None:
        try:
            record = store.get_record(recipe.key)
            dependencies = None if record is None else chain.parse_link(store.get_bytes(record.outputs["next"].sha256))
        except (BlobMissing, EntryCorrupt, RecordUntrusted, KeyError, ValueError):
            return None
        if dependencies is not None:
            link_keys.append(recipe.key)
        return dependencies

    chain.follow(declared, read, lambda dependency: str(seen.get(dependency.part, "")))
    return link_keys
