"""Compare the engines of models on the GPUs of the workers of a scheduler.

Rules
1. The key of a verification names the GPU, the driver and the library versions of a worker that can compare the target. If
   the workers have several kinds of GPUs for a target, a kind with a recorded result is used. If no kind has one, a kind
   with the SM of the target is preferred, then one with the lowest SM. Among kinds with the same SM, the first in the order
   of `GpuKind.to_text` is used.
2. The comparisons of all models wait for workers at the same time, each in its own thread.
3. If no worker can compare a target, the target is not run, as on a machine without a GPU. A comparison that the
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
from trtbuild.driver.building.farm_of_build import connected_farm
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.farm.farm import Farm
from trtbuild.driver.gpu_comparisons import comparing
from trtbuild.driver.gpu_comparisons.engines import order_of_sm
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.gpu_comparisons.job import ComparisonJob, reference_library
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project import wiring
from trtbuild.driver.verification.engine_comparisons import NO_PACKAGE, OnThisMachine, job_of_target
from trtbuild.driver.verification.jobs import PartitioningJob
from trtbuild.driver.verification.subject import Compared, Comparison, EngineComparisons, NotRunHere, Subject
from trtbuild.driver.workers import logs
from trtbuild.errors import NoFittingTarget, NotCompared, NoWorker, TrtbuildError
from trtbuild.runtime.packages.choice import choose_target
from trtbuild.runtime.packages.package import Package

#: The most comparisons that run or wait for a worker at the same time. Each needs a thread.
MOST_JOBS = 64


@contextlib.contextmanager
def engine_comparisons(
    subjects: Collection[Subject], workers: str | None, watcher: Watcher, messages: list[str]
) -> Iterator[EngineComparisons]:
    """Yield the object that compares the engines of models: on the workers at the address `workers`, or on this machine.

    A connection is opened only if the output directory of a model has the planned package. Messages about the workers are
    shown at once, and are added to `messages`. Raises UsageError or EnvironmentFault.
    """
    workspaces = [
        subject.workspace
        for subject in subjects
        if provenance_file.package_in_place(subject.workspace.project, subject.plan) is not None
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
    """Sends comparisons of engines to workers. `comparisons` starts them."""

    def __init__(self, farm: Farm, threads: ThreadPoolExecutor) -> None:
        self._farm = farm
        self._threads = threads

    def comparisons(
        self, subject: Subject, partitioning: PartitioningJob, number: int
    ) -> Iterator[Comparison | NotRunHere]:
        """Yield the comparisons of a model's engines for `partitioning`: the result of one partition step, and its targets.

        `number` is the position of `partitioning` in the list of the model's partitionings.
        """
        package = provenance_file.package_in_place(subject.workspace.project, subject.plan)
        reason = NO_PACKAGE
        if package is not None:
            reason = comparing.why_project_is_needed(package.index, partitioning.job.operators) or ""
        for name in partitioning.targets:
            if package is None or reason:
                yield NotRunHere(name, reason)
            elif name not in package.index.targets:
                yield NotRunHere(name, "the package does not have this target")
            else:
                job = job_of_target(subject, partitioning, number, package, name)
                future = self._threads.submit(self._compare, subject, job, package, name)
                yield Comparison((name,), future.result)

    def _compare(self, subject: Subject, partitioning: PartitioningJob, package: Package, target: str) -> Compared:
        """Compare the engines of a target. Raises NotCompared or another TrtbuildError."""
        packed = package.index.targets[target]
        requirement = f"has a GPU that runs the engines of {packed.toolchain} {packed.version} for SM {packed.sm}"
        reference = reference_library(partitioning.job)
        try:
            kinds = self._farm.wait_for_gpus(partial(_fitting_kinds, package, target, reference), requirement)
        except NoWorker as error:
            raise NotCompared(error.text) from error
        jobs = [_comparison_job(subject, partitioning, package, target, kind) for kind in kinds]
        for job in jobs:
            found = subject.find(partitioning, job.recipe, job.gpu.facts)
            if found is not None:
                return found
        try:
            return self._compare_on_worker(subject, partitioning, package, jobs[0])
        except TrtbuildError as error:
            log_file = logs.keep(
                subject.workspace.project / wiring.LOG_FOLDER, f"{subject.name}/verify/{target}", error.worker_log
            )
            if log_file is not None:
                error.log_file = str(log_file.relative_to(subject.workspace.project))
            raise

    def _compare_on_worker(
        self, subject: Subject, partitioning: PartitioningJob, package: Package, job: ComparisonJob
    ) -> Compared:
        """Let a worker do a job. The report is published if `Subject.is_stored` accepts it."""
        store, recipe = subject.workspace.store, job.recipe
        subject.fetch_blobs(partitioning)
        store.put_bytes(package.index_bytes)
        for path in package.index.targets[job.target].engines.values():
            if not store.local.has(package.index.files[path].sha256):
                store.put_bytes(package.read([path])[path])
        if subject.replay is not None:
            job = replace(job, replay=store.put_file(str(subject.replay)).sha256)
        compared = self._farm.compare(job, replace=not subject.reads_records)
        verified = compared.report
        record = verified.publish(store) if subject.is_stored(verified.report) else None
        report, path_of_worst = verified.report, partitioning.job.worst
        if verified.worst is not None and path_of_worst is not None:
            Path(path_of_worst).parent.mkdir(parents=True, exist_ok=True)
            replace_file(path_of_worst, verified.worst)
            report = replace(report, worst_input=path_of_worst)
        return Compared(partitioning, recipe, job.gpu.facts, report, record, recorded=False, worker=compared.worker)


def _fitting_kinds(package: Package, target: str, reference: str, kinds: Sequence[GpuKind]) -> list[GpuKind]:
    """The kinds of GPUs that can run a target and have the library `reference`, the best one first (rule 1)."""
    fitting = []
    for kind in kinds:
        with contextlib.suppress(NoFittingTarget):
            choose_target(package.index, kind.machine, target)
            if reference in kind.versions:
                fitting.append(kind)
    target_sm = package.index.targets[target].sm
    return sorted(fitting, key=lambda kind: (*order_of_sm(kind.sm, target_sm), kind.to_text()))


def _comparison_job(
    subject: Subject, partitioning: PartitioningJob, package: Package, target: str, kind: GpuKind
) -> ComparisonJob:
    packed = package.index.targets[target]
    return ComparisonJob(
        job=replace(partitioning.job, worst=None, replay=None, roots=()),
        program_graph=partitioning.program_graph,
        quantized=partitioning.quantized,
        index=package.digest,
        target=target,
        toolchain=packed.toolchain,
        version=packed.version,
        plans=partitioning.plans[target],
        gpu=kind,
    )
