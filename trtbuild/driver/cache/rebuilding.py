"""Proof that a cache holds what it says: engines built once more, and compared byte by byte.

Rules
1. Only engines of this project that are hits, whose toolchain gives equal bytes for equal jobs, and is installed here in
   the version that their recipe names. What cannot be checked is told, with the reason.
2. Each is built in a worker of its own, into a store of its own that is removed afterwards. Nothing that is built here
   gets into the cache. One that comes out otherwise is built up to `TRIES` times: TensorRT-RTX 1.7.1 on a
   loaded machine seldom gives a plan in other bytes (toolchain/libraries/table.py). To come out the same once is proof.
3. Where the two differ, the cache lies, or a machine does: the local record is put aside, and the next build plans anew,
   and makes the engine, whatever outputs are in place; the record of a remote is named, for who runs it to remove.
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
from typing import Any

from trtbuild import null_build
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.spec import Target
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record
from trtbuild.core.recipes.trust import places
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.project.weights_file import WeightsFile
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import StoreError, TrtbuildError, UsageError
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult
from trtbuild.toolchain.libraries import table

Document = dict[str, Any]


#: Builds after which an engine that never came out as recorded counts as another one.
TRIES = 4


@dataclass(frozen=True)
class _Candidate:
    """An engine step that can be checked here, its model's plan, and its record."""

    step: Step
    plan: ModelPlan
    record: Record
    key: str


def rebuild(request: Request, share: float, seed: int | None, watcher: Watcher) -> Document:
    """Build a `share` (0 to 1) of the project's engines again, at least one, and compare: ``rebuilt`` of
    ``trtbuild.cache-verify/1``. The same `seed` takes the same sample of the same engines."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    workspace = Workspace(replace(request, force=False))
    unchecked: list[tuple[str, str]] = []
    different: list[Document] = []
    same = 0
    try:
        with workspace.store.only_reading(), workspace.store.session():
            candidates = list(_candidates(workspace, unchecked))
            count = min(len(candidates), max(1, math.ceil(len(candidates) * share)))
            sample = random.Random(seed).sample(candidates, count)
            for candidate in sorted(sample, key=lambda each: each.step.id):
                try:
                    with watcher.phase(f"build {candidate.step.id} again"):
                        found = _built_again(workspace, candidate, candidate.record.outputs["plan"].sha256)
                except TrtbuildError as error:
                    unchecked.append((candidate.step.id, error.text.partition("\n")[0]))
                    continue
                if found == candidate.record.outputs["plan"].sha256:
                    same += 1
                else:
                    different.append(_difference(workspace, candidate, found))
    finally:
        workspace.store.close()
    return {
        "seed": seed,
        "engines": len(candidates),
        "sampled": count,
        "same": same,
        "different": different,
        "unchecked": [{"step": step, "reason": reason} for step, reason in sorted(unchecked)],
    }


def compared(document: Document, request: Request, share: float, seed: int | None, watcher: Watcher) -> Document:
    """``trtbuild.cache-verify/1`` with ``rebuilt``; `ok` is false when an engine is another one, too."""
    rebuilt = rebuild(request, share, seed, watcher)
    return {**document, "ok": document["ok"] and not rebuilt["different"], "rebuilt": rebuilt}


def share_of(text: str) -> float:
    """``10%`` → 0.1. Raises UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f"{text!r} is no share of the engines", hint="write a percentage: --rebuild 10%")
    return float(match[1]) / 100


def _candidates(workspace: Workspace, unchecked: list[tuple[str, str]]) -> Iterator[_Candidate]:
    keys: set[str] = set()
    for name, model in workspace.models.items():
        plan = workspace.plan_elsewhere(name)
        targets = {target.name: target for target in model.targets}
        for step in plan.steps.values():
            if step.stage != "engine" or step.key in keys:
                continue
            why_not = _why_not(step, plan, targets)
            if why_not is not None:
                unchecked.append((step.id, why_not))
            elif step.record is not None and step.key is not None:
                keys.add(step.key)
                yield _Candidate(step, plan, step.record, step.key)


def _why_not(step: Step, plan: ModelPlan, targets: Mapping[str, Target]) -> str | None:
    """Why an engine cannot be checked here, or None."""
    if step.verdict != "hit":
        return "it is not in the cache"
    target = targets[step.target or ""]
    flavour = table.FLAVOURS[target.toolchain]
    if not flavour.reproducible:
        return f"{flavour.name} does not give the same bytes twice"
    installed, wanted = table.installed_version(target.toolchain), _job(step).toolchain_version
    if installed is not None and installed != wanted:
        return f"it was built by {flavour.name} {wanted}, and {installed} is installed here"
    try:
        table.check_target(target, plan.model.builder, installed)
    except TrtbuildError as error:
        return error.text
    return None


def _job(step: Step) -> EngineJob:
    if not isinstance(step.job, EngineJob):
        raise AssertionError("an engine step has an engine's job")
    return step.job


def _built_again(workspace: Workspace, candidate: _Candidate, recorded: str) -> str:
    """The SHA-256 of the plan that comes of the recorded inputs: `recorded`, if one of several tries gives it (rule 2).
    Raises what the worker raises, or StoreError."""
    with tempfile.TemporaryDirectory(prefix="trtbuild-rebuild-") as folder:
        apart = LocalStore(Path(folder))
        _provide(workspace, candidate, apart)
        for _ in range(TRIES):
            pool = WorkerPool(apart.root, workspace.project)
            try:
                reply = call(pool, "engine", _job(candidate.step))
            finally:
                pool.close(kill=True)
            found = reply.outputs["plan"].sha256
            if found == recorded:
                break
    return found


def _provide(workspace: Workspace, candidate: _Candidate, apart: LocalStore) -> None:
    """Put what the engine is made of into a store of its own."""
    job, model = _job(candidate.step), candidate.plan.model
    from_file = []
    for sha256 in dict.fromkeys([job.onnx, *(weight.sha256 for weight in job.weights)]):
        try:
            apart.put_bytes(workspace.store.get_bytes(sha256))
        except StoreError as error:
            if sha256 not in candidate.plan.file_weights:
                raise StoreError("what it was made from is not in the cache any more") from error
            from_file.append(sha256)
    tensors = workspace.look.weights_table(model)
    if from_file and model.weights is not None and tensors is not None:
        WeightsFile(model.weights, workspace.project / model.weights).keep(tensors, from_file, apart)


def _difference(workspace: Workspace, candidate: _Candidate, rebuilt: str) -> Document:
    store, key, plan = workspace.store, candidate.key, candidate.record.outputs["plan"].sha256
    source = store.source_of(key)
    entries = dict(_entries(store.local, key, plan))
    signed = [signature for entry in entries.values() for signature in entry.signatures]
    remotes = []
    for remote in store.readers:
        with suppress(StoreError):  # it cannot be asked, or says nothing that counts
            found = remote.find(key)
            if found is not None and found.record.outputs["plan"].sha256 == plan:
                remotes.append(remote.name)
                signed += found.signatures
    why = f"{candidate.step.id} was built again, and is another engine ({rebuilt})"
    for name in entries:
        store.local.entries.quarantine("ac", name, why)
    shutil.rmtree(workspace.project / null_build.FOLDER, ignore_errors=True)  # what is in place may hold it (rule 3)
    return {
        "step": candidate.step.id,
        "key": key,
        "recorded": plan,
        "rebuilt": rebuilt,
        "source": source,
        "quarantined": bool(entries),
        "remotes": remotes,
        "builder": str(candidate.record.provenance.get("builder", "")),
        "signed_by": [f"{each.signer} ({each.domain}, {each.builder})" for each in dict.fromkeys(signed)],
    }


def _entries(store: LocalStore, key: str, plan: str) -> Iterator[tuple[str, ActionResult]]:
    """The local entries of a record that say that this plan is its engine."""
    for name in places(store.trust, key):
        entry = store.get_action(name)
        if entry is not None and plan in entry.blobs():
            yield name, entry
