"""Compare the engines of models on the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from trtbuild.core.model.comparisons import Report
from trtbuild.driver.gpu_comparisons import engines as engines_here
from trtbuild.driver.gpu_comparisons.job import reference_library
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.verification.jobs import PartitioningJob
from trtbuild.driver.verification.subject import Comparison, NotRunHere, Subject
from trtbuild.runtime.packages.package import Package

#: The reason why engines are not run if the output directory of a model does not have the planned package.
NO_PACKAGE = "its output directory does not have the planned package"


class OnThisMachine:
    """Runs engines in this process, if a suitable GPU exists."""

    def comparisons(
        self, subject: Subject, partitioning: PartitioningJob, number: int
    ) -> Iterator[Comparison | NotRunHere]:
        package = provenance_file.package_in_place(subject.workspace.project, subject.plan)
        if package is None:
            yield from (NotRunHere(name, NO_PACKAGE) for name in partitioning.targets)
            return
        for name, gpu in engines_here.gpus_for_targets(package, partitioning.targets, subject.options.device):
            if isinstance(gpu, str):
                yield NotRunHere(name, gpu)
                continue
            if (reason := engines_here.reason_without_torch()) is not None:
                yield NotRunHere(name, reason)
                continue
            job = job_of_target(subject, partitioning, number, package, name)
            machine = engines_here.machine_facts(gpu, subject.platform)
            target, reference = package.index.targets[name], reference_library(job.job)
            versions = {reference: subject.versions[reference], target.toolchain: target.version}
            recipe = subject.recipe("engine", job, job.plans[name], versions, machine)
            run: Callable[[], Report] = partial(_run, subject, job, package, gpu)
            yield Comparison((name,), partial(subject.find_or_run, job, recipe, machine, run))


def job_of_target(
    subject: Subject, partitioning: PartitioningJob, number: int, package: Package, target: str
) -> PartitioningJob:
    """Return the job of comparing the engines of one target of a package. `number` is the partitioning's number."""
    plans = provenance_file.plans_of(package, target)  # from the package, because the build plan may lack some engines
    of_target = replace(partitioning, targets=(target,), plans={target: plans})
    return subject.job_of_runner(of_target, "engine", number, subject.points, target)


def _run(subject: Subject, partitioning: PartitioningJob, package: Package, gpu: engines_here.TargetGpu) -> Report:
    subject.fetch_blobs(partitioning)
    job, workspace = partitioning.job, subject.workspace
    roots = [workspace.project / root for root in job.roots]
    return engines_here.compare(job, package, gpu, subject.plan.shapes, workspace.store.get_bytes, roots)
