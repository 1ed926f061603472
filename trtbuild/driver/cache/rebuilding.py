"""Check cached engines by building them again and comparing the bytes.

Rules
1. An engine of this project can be checked under four conditions: it is in the cache, its toolchain is reproducible
   (it builds the same bytes again), the toolchain's version in the recipe is installed here, and this machine can
   build for the target. The result names each engine that cannot be checked, with the reason.
2. A separate worker builds the engine into a temporary store, not into the cache. If the bytes differ, the engine is
   built up to `MAX_BUILDS` times, because TensorRT-RTX 1.7.1 on a loaded machine sometimes gives other bytes
   (toolchain/libraries/table.py). One result with the recorded bytes proves that the record is correct.
3. If the bytes still differ, the cached engine or this machine is wrong. The local record is moved to the quarantine.
   The next build plans again, and builds the engine unless a remote has the record. The result names the remotes that
   have the record, so that their administrators can remove it.
"""

from __future__ import annotations

import math
import random
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild import null_build
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import Target
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record
from trtbuild.core.recipes.trust import lookup_keys
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.cache.documents import CacheVerify, Rebuilt, RebuiltEngine, UncheckedEngine
from trtbuild.driver.project.weights_file import WeightsFile
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import StoreError, TrtbuildError, UsageError
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult
from trtbuild.toolchain.libraries import table

#: The largest number of builds of one engine (rule 2).
MAX_BUILDS = 4


@dataclass(frozen=True)
class _Candidate:
    """An engine step that can be checked here. `plan` is the plan of its model, and `record` is the record of the step.

    The engine is the record's output ``plan``, which is TensorRT's word for it."""

    step: Step
    plan: ModelPlan
    record: Record
    key: str


def rebuild(request: Request, share: float, seed: int | None, watcher: Watcher) -> Rebuilt:
    """Build a random sample of the checkable engines again, and compare them with the cache.

    `share`: the part of the checkable engines that is in the sample, from 0 to 1. If there is a checkable engine, the
    sample has at least one. The same `seed` chooses the same sample from the same engines. If `seed` is None, a random
    seed is used.
    """
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    workspace = Workspace(replace(request, force=False))
    unchecked: list[tuple[str, str]] = []
    different: list[RebuiltEngine] = []
    same = 0
    try:
        with workspace.store.without_uploads(), workspace.store.session():
            candidates = list(_find_candidates(workspace, unchecked))
            count = min(len(candidates), max(1, math.ceil(len(candidates) * share)))
            sample = random.Random(seed).sample(candidates, count)
            for candidate in sorted(sample, key=lambda candidate: candidate.step.id):
                try:
                    with watcher.phase(f"build {candidate.step.id} again"):
                        rebuilt_sha256 = _rebuild_engine(workspace, candidate, candidate.record.outputs["plan"].sha256)
                except TrtbuildError as error:
                    unchecked.append((candidate.step.id, error.text.partition("\n")[0]))
                    continue
                if rebuilt_sha256 == candidate.record.outputs["plan"].sha256:
                    same += 1
                else:
                    different.append(_quarantine_different_engine(workspace, candidate, rebuilt_sha256))
    finally:
        workspace.store.close()
    return Rebuilt(
        seed=seed,
        engines=len(candidates),
        sampled=count,
        same=same,
        different=different,
        unchecked=[UncheckedEngine(step=step, reason=reason) for step, reason in sorted(unchecked)],
    )


def add_rebuilt_engines(
    document: CacheVerify, request: Request, share: float, seed: int | None, watcher: Watcher
) -> CacheVerify:
    """Call `rebuild`, and return `document` with the result."""
    rebuilt = rebuild(request, share, seed, watcher)
    return replace(document, ok=document.ok and not rebuilt.different, rebuilt=rebuilt)


def parse_share(text: str) -> float:
    """A percentage as a number: ``10%`` → 0.1. Raises UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f"{text!r} is not a percentage above 0% and up to 100%", hint="for example: --rebuild 10%")
    return float(match[1]) / 100


def _find_candidates(workspace: Workspace, unchecked: list[tuple[str, str]]) -> Iterator[_Candidate]:
    """Yield the engine steps that can be checked, one for each key. Add the others to `unchecked`, with the reason."""
    candidate_keys: set[str] = set()
    for name, model in workspace.models.items():
        plan = workspace.plan_without_outputs(name)
        targets = {target.name: target for target in model.targets}
        for step in plan.steps.values():
            if step.stage != "engine" or step.key in candidate_keys:
                continue
            reason = _reason_not_checked(step, plan, targets)
            if reason is not None:
                unchecked.append((step.id, reason))
            elif step.record is not None and step.key is not None:
                candidate_keys.add(step.key)
                yield _Candidate(step, plan, step.record, step.key)


def _reason_not_checked(step: Step, plan: ModelPlan, targets: Mapping[str, Target]) -> str | None:
    if step.verdict != "hit":
        return "it is not in the cache"
    target = targets[step.target or ""]
    flavour = table.FLAVOURS[target.toolchain]
    if not flavour.reproducible:
        return f"{flavour.name} does not give the same bytes twice"
    installed, required = table.installed_version(target.toolchain), _engine_job(step).toolchain_version
    if installed is not None and installed != required:
        return f"it was built by {flavour.name} {required}, and {installed} is installed here"
    try:
        table.check_target(target, plan.model.builder, installed)
    except TrtbuildError as error:
        return error.text
    return None


def _engine_job(step: Step) -> EngineJob:
    if not isinstance(step.job, EngineJob):
        raise AssertionError("the job of an engine step is an EngineJob")
    return step.job


def _rebuild_engine(workspace: Workspace, candidate: _Candidate, recorded_sha256: str) -> str:
    """Build an engine again from its recorded inputs, and return the SHA-256 of its bytes.

    The builds stop at the first that gives `recorded_sha256` (rule 2). Raises the error of the worker, or StoreError.
    """
    with tempfile.TemporaryDirectory(prefix="trtbuild-rebuild-") as folder:
        temporary = LocalStore(Path(folder))
        _copy_inputs(workspace, candidate, temporary)
        for _ in range(MAX_BUILDS):
            pool = WorkerPool(temporary.root, workspace.project)
            try:
                reply = call(pool, "engine", _engine_job(candidate.step))
            finally:
                pool.close(kill=True)
            rebuilt_sha256 = reply.outputs["plan"].sha256
            if rebuilt_sha256 == recorded_sha256:
                break
    return rebuilt_sha256


def _copy_inputs(workspace: Workspace, candidate: _Candidate, temporary: LocalStore) -> None:
    """Copy the inputs of an engine step into a temporary store: from the cache, or weights from the weights file."""
    job, model = _engine_job(candidate.step), candidate.plan.model
    missing_inputs = []
    libraries = [] if job.plugin_library is None else [job.plugin_library]
    for sha256 in dict.fromkeys([job.onnx, *libraries, *(weight.sha256 for weight in job.weights)]):
        try:
            temporary.put_bytes(workspace.store.get_bytes(sha256))
        except StoreError as error:
            if sha256 in libraries or sha256 not in candidate.plan.project_blobs:
                raise StoreError("its inputs are not in the cache any more") from error
            missing_inputs.append(sha256)
    tensors = workspace.lookups.weights_table(model)
    if missing_inputs and model.weights is not None and tensors is not None:
        WeightsFile(model.weights, workspace.project / model.weights).put_tensors(tensors, missing_inputs, temporary)


def _quarantine_different_engine(workspace: Workspace, candidate: _Candidate, rebuilt_sha256: str) -> RebuiltEngine:
    """Move the local entries of an engine that differs to the quarantine, and describe the engine (rule 3)."""
    store, key, plan_sha256 = workspace.store, candidate.key, candidate.record.outputs["plan"].sha256
    source = store.source_of(key)
    entries = dict(_local_entries(store.local, key, plan_sha256))
    signatures = [signature for entry in entries.values() for signature in entry.signatures]
    remotes = []
    for remote in store.readers:
        with suppress(StoreError):  # the remote cannot be read, or its record is not trusted
            remote_copy = remote.find(key)
            if remote_copy is not None and remote_copy.record.outputs["plan"].sha256 == plan_sha256:
                remotes.append(remote.name)
                signatures += remote_copy.signatures
    why = f"{candidate.step.id} was built again, and the result is another engine ({rebuilt_sha256})"
    for name in entries:
        store.local.entries.quarantine("ac", name, why)
    # without a snapshot, the next build has to plan (rule 3)
    shutil.rmtree(workspace.project / null_build.SNAPSHOT_FOLDER, ignore_errors=True)
    return RebuiltEngine(
        step=candidate.step.id,
        key=key,
        recorded=plan_sha256,
        rebuilt=rebuilt_sha256,
        source=source,
        quarantined=bool(entries),
        remotes=remotes,
        builder=str(candidate.record.provenance.get("builder", "")),
        signed_by=[f"{entry.signer} ({entry.domain}, {entry.builder})" for entry in dict.fromkeys(signatures)],
    )


def _local_entries(store: LocalStore, key: str, plan_sha256: str) -> Iterator[tuple[str, ActionResult]]:
    """Yield (name, entry) for each local entry that may answer a lookup of `key`, and that names this engine."""
    for name in lookup_keys(store.trust, key):
        entry = store.get_action(name)
        if entry is not None and plan_sha256 in entry.blobs():
            yield name, entry
