"""``trtbuild verify [MODEL…]``: compare the conversions and engines of a project's models with PyTorch.

Rules
1. A verification is not repeated for the same programs, conversions, weights, points, tolerance and versions. Its record is
   in the store, under a separate recipe (docs/keys.md). Failed verifications are not recorded.
2. The results are written beside the package, if that is the package that was verified (`core.packages.provenance`).
   Results of other machines about the same engines stay. If a comparison fails, the file is removed.
3. onnxruntime runs converted partitions in a worker process. Engines run in this process, if a GPU fits. For a model that
   comes as ONNX, only the engines are compared, and onnxruntime on the CPU is the reference.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from trtbuild.core.model import verification
from trtbuild.core.model.comparisons import Report, Status
from trtbuild.core.model.verification import Point
from trtbuild.core.model.verified import CutEntry, ModelEntry, NotRun
from trtbuild.core.planning.graph import ModelPlan
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import ErrorEntry, Verification
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.verification import engines as engines_here
from trtbuild.driver.verification import records
from trtbuild.driver.verification.document import NotCompared, Options, document, unexpected
from trtbuild.driver.verification.jobs import PartitioningJob, missing, partitioning_jobs, unique_points
from trtbuild.driver.verification.replay import point_of
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import ToolchainMissing, TrtbuildError, UsageError
from trtbuild.runtime.packages.package import Package

#: The folder for the worst inputs, relative to the project.
FOLDER = f"{wiring.STATE_FOLDER}/verify"

#: Distributions that contain the module onnxruntime.
_ONNXRUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


def verify(request: Request, options: Options, watcher: Watcher) -> Verification:
    """Verify models, and return the document ``trtbuild.verify/1``.

    `ok` is false if a comparison fails, or if a step has no record.

    Raises ToolchainMissing if onnxruntime or torch is not installed, and UsageError for options that contradict each other.
    """
    started = time.monotonic()
    workspace = Workspace(replace(request, force=False))
    if options.replay is not None and len(workspace.models) != 1:
        raise UsageError("--replay is for one model", hint="name it: trtbuild verify MODEL --replay FILE")
    versions = _versions()
    models: list[ModelEntry] = []
    errors: list[ErrorEntry] = []
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)
    try:
        with workspace.store.session():
            for name in workspace.models:
                try:
                    model = _ModelVerification(workspace, name, options, versions, pool, force=request.force)
                    with watcher.work(f"verify {name}") as work:
                        models.append(model.verified())
                        work.failed = not models[-1].ok
                except TrtbuildError as error:
                    if error.exit_code != 1:
                        raise
                    errors.append(report.describe(error))
                    models.append(_failed(name))
                except Exception as error:
                    errors.append(report.describe(unexpected(error)))
                    models.append(_failed(name))
        workspace.store.finish()
    finally:
        pool.close(kill=True)
        workspace.store.close()
    return document(options, started, models, errors, workspace.store.warnings())


@dataclass(frozen=True)
class _Comparison:
    """One comparison: a partitioning, its runner, its recipe, and the function that computes its report."""

    by: verification.Runner
    partitioning: PartitioningJob
    recipe: Recipe
    machine: Mapping[str, str]
    run: Callable[[], Report]


class _ModelVerification:
    """The verification of one model."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        options: Options,
        versions: Mapping[str, str],
        pool: WorkerPool,
        *,
        force: bool,
    ) -> None:
        self._workspace = workspace
        self._name = name
        self._options = options
        self._versions = versions
        self._pool = pool
        self._reads_records = not force and options.replay is None
        self._plan: ModelPlan = workspace.plan_without_outputs(name)
        self._platform = workspace.facts[name].platform
        model, shapes = self._plan.model, self._plan.shapes
        self._replay = None if options.replay is None else Path(options.replay).absolute()
        if self._replay is not None:
            self._points: tuple[Point, ...] = (point_of(self._replay, model, shapes),)
        else:
            self._points = verification.points(model, shapes, count=options.points, seed=options.seed)
        profiles, dims = [profile.name for profile in model.profiles], [symbol.name for symbol in shapes.symbols]
        self._labels = records.Labels(profiles, dims, workspace.project)
        #: Targets whose engines did not run, with the reason.
        self._not_run: list[NotRun] = []

    def verified(self) -> ModelEntry:
        """Verify the model, write its provenance, and return its entry of the document."""
        precision = self._plan.model.precision
        missing_steps = missing(self._plan)
        if missing_steps:
            steps = [step.id for step in missing_steps]
            return ModelEntry(model=self._name, ok=False, status="missing", missing=steps, precision=precision)
        source = self._plan.model.source
        if source.graph.reference is None:
            reason = f"it comes from `{source.kind}`: there is no PyTorch model to compare with"
            not_run = [NotRun(target=target.name, reason=reason) for target in self._plan.model.targets]
            return ModelEntry(model=self._name, ok=True, status="unchecked", not_run=not_run, precision=precision)
        entries = [cut for comparison in self._comparisons() if (cut := self._entry(comparison)) is not None]
        cuts = records.with_tf32_hints(entries, self._plan.model.builder.tf32)
        statuses = {cut.status for cut in cuts}
        status: Status = "wrong" if "wrong" in statuses else "right" if statuses == {"right"} else "unchecked"
        if self._replay is None and status == "wrong":
            provenance_file.remove_of(self._workspace.project, self._plan)
        elif self._replay is None:
            provenance_file.write(self._workspace.project, self._plan, cuts)
        return ModelEntry(
            model=self._name,
            ok=status != "wrong",
            status=status,
            cuts=cuts,
            not_run=self._not_run,
            precision=precision,
        )

    def _entry(self, comparison: _Comparison) -> CutEntry | None:
        """Return the entry of one comparison, from its record or by running it; None if there is no reference."""
        store = self._workspace.store
        record, report = records.known(store, comparison.recipe) if self._reads_records else (None, None)
        recorded = report is not None
        if report is None:
            try:
                report = comparison.run()
            except NotCompared as error:
                self._not_run += [NotRun(target=name, reason=str(error)) for name in comparison.partitioning.targets]
                return None
            if self._replay is None and report.status != "wrong":
                record = records.keep(store, comparison.recipe, report)
        return records.entry(
            report,
            self._labels,
            targets=comparison.partitioning.targets,
            toolchain=comparison.partitioning.toolchain,
            plans=comparison.partitioning.plans,
            machine=comparison.machine,
            provenance=record.provenance if record is not None else {},
            key=comparison.recipe.key,
            recorded=recorded,
        )

    def _comparisons(self) -> Iterator[_Comparison]:
        replay = None if self._replay is None else str(self._replay)
        for number, partitioning in enumerate(
            partitioning_jobs(self._workspace, self._plan, self._points, replay=replay)
        ):
            if not partitioning.job.by_onnx:
                by_onnx = self._job_of_runner(partitioning, "onnxruntime", number, unique_points(self._points))
                machine = {"platform": self._platform}
                recipe = self._recipe("onnxruntime", by_onnx, partitioning.job.onnx, self._versions, machine)
                yield _Comparison("onnxruntime", by_onnx, recipe, machine, partial(self._run_in_worker, by_onnx))
            yield from self._engine_comparisons(partitioning, number)

    def _job_of_runner(
        self,
        partitioning: PartitioningJob,
        by: verification.Runner,
        number: int,
        points: tuple[Point, ...],
        label: str = "",
    ) -> PartitioningJob:
        """Return the job of a partitioning for one runner."""
        name = self._name + ("" if by == "onnxruntime" and not number else f"@{label or number}")
        return replace(
            partitioning,
            job=replace(
                partitioning.job,
                points=points,
                shapes=tuple(self._plan.shapes.sizes(point.sizes) for point in points),
                tolerances=verification.tolerances(by, self._options.tolerance),
                worst=str(self._workspace.project / FOLDER / f"{name}.safetensors"),
            ),
        )

    def _recipe(
        self,
        by: verification.Runner,
        partitioning: PartitioningJob,
        contents: Mapping[str, str],
        versions: Mapping[str, str],
        machine: Mapping[str, str],
    ) -> Recipe:
        job = partitioning.job
        return keys.verification(
            by,
            partitioning.program_graph,
            job.partitions,
            contents,
            job.weights,
            job.points,
            job.tolerances,
            versions,
            machine,
            job.ranges,
        )

    def _fetch_blobs(self, partitioning: PartitioningJob) -> None:
        """Fetch all blobs of a job into the local store."""
        workspace, plan = self._workspace, self._plan
        blobs = list(dict.fromkeys(partitioning.blobs()))
        workspace.lookups.keep_file_weights(plan.model, [sha256 for sha256 in blobs if sha256 in plan.file_weights])
        workspace.store.fetch(blobs)

    def _run_in_worker(self, partitioning: PartitioningJob) -> Report:
        self._fetch_blobs(partitioning)
        result = call(self._pool, "verify", partitioning.job).report
        if result is None:
            raise AssertionError("a verification leaves a report")
        return result

    # -- engines, where a GPU fits

    def _engine_comparisons(self, partitioning: PartitioningJob, number: int) -> Iterator[_Comparison]:
        package = provenance_file.package_in_place(self._workspace.project, self._plan)
        if package is None:
            self._not_run += [
                NotRun(target=name, reason="its package is not in place") for name in partitioning.targets
            ]
            return
        for name, fit in engines_here.fitting(package, partitioning.targets):
            why_not = fit if isinstance(fit, str) else engines_here.why_not_with_torch()
            if why_not is not None or isinstance(fit, str):
                self._not_run.append(NotRun(target=name, reason=why_not or ""))
                continue
            plans = provenance_file.plans_of(package, name)  # from the package, because the build plan may lack some
            target_partitioning = replace(partitioning, targets=(name,), plans={name: plans})
            job = self._job_of_runner(target_partitioning, "engine", number, self._points, name)
            machine = engines_here.machine(fit, self._platform)
            target = package.index.targets[name]
            reference = "onnxruntime" if partitioning.job.by_onnx else "torch"
            versions = {reference: self._versions[reference], target.toolchain: target.version}
            recipe = self._recipe("engine", job, plans, versions, machine)
            yield _Comparison("engine", job, recipe, machine, partial(self._run_here, job, package, fit))

    def _run_here(self, partitioning: PartitioningJob, package: Package, fit: engines_here.Fit) -> Report:
        from trtbuild.stages.verify.run import verify as compare
        from trtbuild.stages.verify.running import NotRunnable

        self._fetch_blobs(partitioning)
        with engines_here.OpenEngines(package, fit) as engines:
            runner = engines_here.EngineRunner(engines, self._plan.shapes)
            try:
                return compare(partitioning.job, self._workspace.store.get_bytes, lambda *_: runner)
            except NotRunnable as error:
                raise NotCompared(str(error)) from error


def _failed(name: str) -> ModelEntry:
    return ModelEntry(model=name, ok=False, status="failed")


def _versions() -> dict[str, str]:
    """Return the versions of onnxruntime, torch and onnx. Raises ToolchainMissing."""
    versions = {}
    for name, candidates in {"onnxruntime": _ONNXRUNTIMES, "torch": ("torch",), "onnx": ("onnx",)}.items():
        for candidate in candidates:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(candidate)
                break
        else:
            raise ToolchainMissing(
                f"verify runs the model with {name}, which is not installed",
                hint="pip install 'trtbuild[verify]'"
                if name == "onnxruntime"
                else "pip install 'trtbuild[torch,verify]'",
            )
    return versions
