"""Compare the engines of models on the GPUs of the workers of a Dask scheduler.

Rules
1. The key of a comparison names a worker's GPU, its driver, and its version of PyTorch or onnxruntime (`GpuKind`). If
   several kinds of GPUs can run a target, a kind with a recorded result is used. Without a recorded result, a kind with the
   SM of the target is preferred, then the lowest SM. Among kinds with the same SM, the first by `GpuKind.to_text` is used.
2. The comparisons of all models wait for workers at the same time, each in its own thread (at most `MOST_JOBS`).
3. If no worker can compare a target, the target is not compared, as on a machine without a GPU. A comparison that the
   workers could not finish is an error of its model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from trtbuild.atomic import replace_file
from trtbuild.core.model.verified import NotRun
from trtbuild.driver.building.farm_of_build import connected_farm
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.farm.farm import Farm
from trtbuild.driver.gpu_comparisons import comparing
from trtbuild.driver.gpu_comparisons.engines import order_of_sm
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.gpu_comparisons.job import ComparisonJob, reference_library
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project.folders import LOG_FOLDER
from trtbuild.driver.verification.cuts import CutVerification
from trtbuild.driver.verification.engine_comparisons import NO_PACKAGE, OnThisMachine, verification_of_target
from trtbuild.driver.verification.verified_model import (
    EngineComparisons,
    FinishedComparison,
    PendingComparison,
    VerifiedModel,
)
from trtbuild.driver.workers import logs
from trtbuild.errors import NoFittingTarget, NotCompared, NoWorker, TrtbuildError
from trtbuild.runtime.packages.choice import choose_target
from trtbuild.runtime.packages.package import Package

#: The most comparisons that run or wait for a worker at the same time. Each needs a thread.
MOST_JOBS = 64


@contextlib.contextmanager
def engine_comparisons(
    models: Collection[VerifiedModel], workers: str | None, watcher: Watcher, messages: list[str]
) -> Iterator[EngineComparisons]:
    """Yield the object that compares the engines of models.

    It uses the workers of the scheduler at the address `workers`. Without this address, or if no model has its planned
    package in its output directory, it uses this machine. Messages about the workers are shown at once, and are added to
    `messages`. Raises UsageError or EnvironmentFault.
    """
    workspaces = [
        model.workspace
        for model in models
        if provenance_file.package_in_place(model.workspace.project, model.plan) is not None
    ]
    if workers is None or not workspaces:
        yield OnThisMachine()
        return
    with connected_farm(workspaces[0], workers, watcher, messages) as farm:
        threads = ThreadPoolExecutor(MOST_JOBS, "trtbuild-comparison")
        try:
            yield OnWorkers(farm, threads)
        except BaseException:
            farm.cancel()
            raise
        finally:
            threads.shutdown(cancel_futures=True)


class OnWorkers:
    """Compares engines on workers. `comparisons` starts the comparisons."""

    def __init__(self, farm: Farm, threads: ThreadPoolExecutor) -> None:
        self._farm = farm
        self._threads = threads

    def comparisons(
        self, model: VerifiedModel, cut: CutVerification, number: int
    ) -> Iterator[PendingComparison | NotRun]:
        """Yield the comparisons of a cut's engines. `number` is the index of the cut in the model."""
        package = provenance_file.package_in_place(model.workspace.project, model.plan)
        reason = NO_PACKAGE
        if package is not None:
            reason = comparing.why_project_is_needed(package.index, cut.verify_job.operators) or ""
        for name in cut.targets:
            if package is None or reason:
                yield NotRun(target=name, reason=reason)
            elif name not in package.index.targets:
                yield NotRun(target=name, reason="the package does not have this target")
            else:
                of_target = verification_of_target(model, cut, number, package, name)
                future = self._threads.submit(self._compare, model, of_target, package, name)
                yield PendingComparison((name,), future.result)

    def _compare(self, model: VerifiedModel, cut: CutVerification, package: Package, target: str) -> FinishedComparison:
        """Compare the engines of a target. Raises NotCompared or another TrtbuildError."""
        packed = package.index.targets[target]
        requirement = f"has a GPU that runs the engines of {packed.toolchain} {packed.version} for SM {packed.sm}"
        reference = reference_library(cut.verify_job)
        try:
            kinds = self._farm.wait_for_gpus(partial(_fitting_kinds, package, target, reference), requirement)
        except NoWorker as error:
            raise NotCompared(error.text) from error
        jobs = [_comparison_job(model, cut, package, target, kind) for kind in kinds]
        for job in jobs:
            found = model.find(cut, job.recipe, job.gpu.key_facts)
            if found is not None:
                return found
        try:
            return self._compare_on_worker(model, cut, package, jobs[0])
        except TrtbuildError as error:
            log_file = logs.keep(
                model.workspace.project / LOG_FOLDER, f"{model.name}/verify/{target}", error.worker_log
            )
            if log_file is not None:
                error.log_file = str(log_file.relative_to(model.workspace.project))
            raise

    def _compare_on_worker(
        self, model: VerifiedModel, cut: CutVerification, package: Package, job: ComparisonJob
    ) -> FinishedComparison:
        """Let a worker do a job, and publish the report if `VerifiedModel.is_stored` accepts it."""
        store, recipe = model.workspace.store, job.recipe
        model.fetch_blobs(cut)
        store.put_bytes(package.index_bytes)
        for path in package.index.targets[job.target].engines.values():
            if not store.local.has(package.index.files[path].sha256):
                store.put_bytes(package.read([path])[path])
        if model.replay is not None:  # the file of inputs of ``verify --replay``
            job = replace(job, replay=store.put_file(str(model.replay)).sha256)
        compared = self._farm.compare(job, replace=not model.reads_records)
        verified = compared.report
        record = verified.publish(store) if model.is_stored(verified.report) else None
        report, path_of_worst = verified.report, cut.verify_job.worst
        if verified.worst is not None and path_of_worst is not None:
            Path(path_of_worst).parent.mkdir(parents=True, exist_ok=True)
            replace_file(path_of_worst, verified.worst)
            report = replace(report, worst_input=path_of_worst)
        return FinishedComparison(
            cut, recipe, job.gpu.key_facts, report, record, recorded=False, worker=compared.worker
        )


def _fitting_kinds(package: Package, target: str, reference: str, kinds: Sequence[GpuKind]) -> list[GpuKind]:
    """Return the kinds of GPUs that can run a target and have the library `reference`, the best first (rule 1)."""
    fitting = []
    for kind in kinds:
        with contextlib.suppress(NoFittingTarget):
            choose_target(package.index, kind.machine, target)
            if reference in kind.versions:
                fitting.append(kind)
    target_sm = package.index.targets[target].sm
    return sorted(fitting, key=lambda kind: (*order_of_sm(kind.sm, target_sm), kind.to_text()))


def _comparison_job(
    model: VerifiedModel, cut: CutVerification, package: Package, target: str, kind: GpuKind
) -> ComparisonJob:
    packed = package.index.targets[target]
    return ComparisonJob(
        job=replace(cut.verify_job, worst=None, replay=None, roots=()),
        program_graph=cut.program_graph,
        quantized=cut.quantized,
        index=package.digest,
        target=target,
        toolchain=packed.toolchain,
        version=packed.version,
        plans=cut.plans[target],
        gpu=kind,
    )
