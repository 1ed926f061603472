"""Compare the engines of models on the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from trtbuild.core.model.comparisons import Report
from trtbuild.core.model.verified import NotRun
from trtbuild.driver.gpu_comparisons import engines as engines_here
from trtbuild.driver.gpu_comparisons.job import reference_library
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.verification.cuts import CutVerification
from trtbuild.driver.verification.verified_model import PendingComparison, VerifiedModel
from trtbuild.runtime.packages.package import Package

#: The reason why the engines of a model without a package are not run.
NO_PACKAGE = "its output directory does not have the planned package"


class OnThisMachine:
    """Compares engines in this process, if a suitable GPU exists."""

    def comparisons(
        self, model: VerifiedModel, cut: CutVerification, number: int
    ) -> Iterator[PendingComparison | NotRun]:
        package = provenance_file.package_in_place(model.workspace.project, model.plan)
        if package is None:
            yield from (NotRun(target=name, reason=NO_PACKAGE) for name in cut.targets)
            return
        for name, gpu in engines_here.gpus_for_targets(package, cut.targets, model.options.device):
            if isinstance(gpu, str):
                yield NotRun(target=name, reason=gpu)
                continue
            if (reason := engines_here.reason_without_torch()) is not None:
                yield NotRun(target=name, reason=reason)
                continue
            of_target = verification_of_target(model, cut, number, package, name)
            machine = engines_here.machine_facts(gpu, model.platform)
            target, reference = package.index.targets[name], reference_library(of_target.verify_job)
            versions = {reference: model.versions[reference], target.toolchain: target.version}
            recipe = model.recipe("engine", of_target, of_target.plans[name], versions, machine)
            run: Callable[[], Report] = partial(_run, model, of_target, package, gpu)
            yield PendingComparison((name,), partial(model.find_or_run, of_target, recipe, machine, run))


def verification_of_target(
    model: VerifiedModel, cut: CutVerification, number: int, package: Package, target: str
) -> CutVerification:
    """Return the verification of the engines of `target`. `number` is the index of `cut` in the model."""
    # `cut.plans` may lack engines whose records are not in the cache
    plans = provenance_file.plans_of(package, target)
    of_target = replace(cut, targets=(target,), plans={target: plans})
    return model.verification_by(of_target, "engine", number, model.points, target)


def _run(model: VerifiedModel, cut: CutVerification, package: Package, gpu: engines_here.TargetGpu) -> Report:
    model.fetch_blobs(cut)
    job, workspace = cut.verify_job, model.workspace
    roots = [workspace.project / root for root in job.roots]
    return engines_here.compare(job, package, gpu, model.plan.shapes, workspace.store.get_bytes, roots)
