"""``trtbuild verify [MODEL…]``: compare the conversions and engines of a project's models with PyTorch.

Rules
1. A verification is not repeated for the same recipe: the programs, conversions or engines, weights, points, ranges of
   inputs, tolerances, versions and the machine (docs/keys.md). Its record is in the store. ``--force`` and ``--replay``
   ignore the record. Failed verifications are not recorded.
2. The results are written to provenance.json in the package's directory, if the package is the one that was verified
   (`core.packages.provenance`). Results of other machines about the same engines stay. If a comparison fails, the file is
   removed. With ``--replay`` the file does not change.
3. onnxruntime runs converted partitions in a worker process. Engines run in this process, if a suitable GPU exists. For a
   model that comes as ONNX, only the engines are compared, and onnxruntime on the CPU is the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from trtbuild.driver.building.operator_warnings import operator_warnings
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.verification import engines as engines_here
from trtbuild.driver.verification import records
from trtbuild.driver.verification.document import (
    ADVICE_FOR_ONNX,
    ADVICE_FOR_PYTORCH,
    NotCompared,
    Options,
    internal_error,
    verification_document,
)
from trtbuild.driver.verification.float_traces import NoFloatTrace, float_program
from trtbuild.driver.verification.jobs import PartitioningJob, missing_steps, partitioning_jobs, unique_points
from trtbuild.driver.verification.replay import replayed_point
from trtbuild.driver.verification.versions import installed_versions
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import TrtbuildError, UsageError
from trtbuild.runtime.packages.package import Package
from trtbuild.stages.verify.job import FloatProgram

#: The folder for the inputs with the largest errors, relative to the project.
WORST_INPUTS_FOLDER = f"{wiring.STATE_FOLDER}/verify"


def verify(request: Request, options: Options, watcher: Watcher) -> Verification:
    """Verify models, and return the document ``trtbuild.verify/1``.

    `ok` is false if a comparison fails, if a step has no record, or if the verification of a model ends with an error.

    Raises ToolchainMissing if onnxruntime, torch or onnx is not installed. Raises UsageError if a replay is not for one
    model, or if the device does not exist.
    """
    started = time.monotonic()
    engines_here.usable_gpus(options.device)  # an unknown device is an error before any work
    workspace = Workspace(replace(request, force=False))
    if options.replay is not None and len(workspace.models) != 1:
        raise UsageError("--replay is for one model", hint="name it: trtbuild verify MODEL --replay FILE")
    versions = installed_versions()
    models: list[ModelEntry] = []
    plans: list[ModelPlan] = []
    errors: list[ErrorEntry] = []
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)
    try:
        with workspace.store.session():
            for name in workspace.models:
                try:
                    model = _ModelVerification(workspace, name, options, versions, pool, force=request.force)
                    plans.append(model.plan)
                    with watcher.work(f"verify {name}") as work:
                        models.append(model.verify())
                        work.failed = not models[-1].ok
                except TrtbuildError as error:
                    if error.exit_code != 1:
                        raise
                    errors.append(report.describe(error))
                    models.append(_failed_entry(name))
                except Exception as error:
                    errors.append(report.describe(internal_error(error)))
                    models.append(_failed_entry(name))
        workspace.store.finish()
    finally:
        pool.close(kill=True)
        workspace.store.close()
    warnings = [*workspace.store.warnings(), *operator_warnings(plans)]
    return verification_document(options, started, models, errors, warnings)


@dataclass(frozen=True)
class _Comparison:
    """One comparison: the partitioning, the runner (`by`), the recipe, and the function that computes the report."""

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
            self._points: tuple[Point, ...] = (replayed_point(self._replay, model, shapes),)
        else:
            self._points = verification.points(model, shapes, count=options.points, seed=options.seed)
        profiles, dims = [profile.name for profile in model.profiles], [symbol.name for symbol in shapes.symbols]
        self._labels = records.Labels(profiles, dims, workspace.project)
        #: Targets whose engines did not run, with the reason.
        self._not_run: list[NotRun] = []
        self._is_quantized = False
        #: The reason why a model with ``quantize:`` has no float model; empty if it has one.
        self._no_float_trace = ""

    @property
    def plan(self) -> ModelPlan:
        return self._plan

    def verify(self) -> ModelEntry:
        """Verify the model, write its provenance, and return its entry of the document."""
        precision = self._plan.model.precision
        steps = missing_steps(self._plan)
        if steps:
            missing = [step.id for step in steps]
            return ModelEntry(model=self._name, ok=False, status="missing", missing=missing, precision=precision)
        source = self._plan.model.source
        if source.graph.reference is None:
            reason = f"it comes from `{source.kind}`: there is no PyTorch model to compare with"
            not_run = [NotRun(target=target.name, reason=reason) for target in self._plan.model.targets]
            return ModelEntry(model=self._name, ok=True, status="unchecked", not_run=not_run, precision=precision)
        entries = [cut for comparison in self._comparisons() if (cut := self._entry(comparison)) is not None]
        cuts = records.add_tf32_hints(entries, self._plan.model.builder.tf32)
        statuses = {cut.status for cut in cuts}
        status: Status = "wrong" if "wrong" in statuses else "right" if statuses == {"right"} else "unchecked"
        if self._replay is None and status == "wrong":
            provenance_file.remove_of(self._workspace.project, self._plan)
        elif self._replay is None:
            provenance_file.write(self._workspace.project, self._plan, cuts)
        advice = ADVICE_FOR_ONNX if source.graph.reference == "onnxruntime" else ADVICE_FOR_PYTORCH
        exceeds = self._options.excess(cuts, "" if self._no_float_trace else advice, quantized=self._is_quantized)
        return ModelEntry(
            model=self._name,
            ok=status != "wrong" and exceeds is None,
            status=status,
            cuts=cuts,
            not_run=self._not_run,
            precision=precision,
            exceeds=exceeds,
        )

    def _entry(self, comparison: _Comparison) -> CutEntry | None:
        """Return the entry of one comparison, from its record or by running it; None if the reference cannot run."""
        store = self._workspace.store
        record, report = records.find_record(store, comparison.recipe) if self._reads_records else (None, None)
        recorded = report is not None
        if report is None:
            try:
                report = comparison.run()
            except NotCompared as error:
                self._not_run += [NotRun(target=name, reason=str(error)) for name in comparison.partitioning.targets]
                return None
            if self._replay is None and report.status != "wrong":
                record = records.store_record(store, comparison.recipe, report)
        if self._no_float_trace and report.float_error is not None:
            report = replace(report, float_error=report.float_error.explained(self._no_float_trace))
        return records.comparison_entry(
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
        partitionings = partitioning_jobs(
            self._workspace, self._plan, self._points, replay=replay, float_program=self._float_program()
        )
        for number, partitioning in enumerate(partitionings):
            self._is_quantized = partitioning.quantized
            if not partitioning.job.by_onnx:
                onnxruntime_job = self._job_of_runner(partitioning, "onnxruntime", number, unique_points(self._points))
                machine = {"platform": self._platform}
                recipe = self._recipe("onnxruntime", onnxruntime_job, partitioning.job.onnx, self._versions, machine)
                yield _Comparison(
                    "onnxruntime", onnxruntime_job, recipe, machine, partial(self._run_in_worker, onnxruntime_job)
                )
            yield from self._engine_comparisons(partitioning, number)

    def _float_program(self) -> FloatProgram | None:
        """Return the float model of a model with ``quantize:``; None for other models, or if it cannot be traced."""
        if self._plan.model.quantization is None:
            return None
        try:
            return float_program(self._workspace, self._plan, self._pool)
        except NoFloatTrace as error:
            self._no_float_trace = f"; there is no trace of the model without `quantize:`: {error}"
            return None

    def _job_of_runner(
        self,
        partitioning: PartitioningJob,
        by: verification.Runner,
        number: int,
        points: tuple[Point, ...],
        label: str = "",
    ) -> PartitioningJob:
        """Return the job of a partitioning for one runner. `label` is for the file name of the worst inputs."""
        name = self._name + ("" if by == "onnxruntime" and not number else f"@{label or number}")
        return replace(
            partitioning,
            job=replace(
                partitioning.job.at(points, self._plan.shapes),
                tolerances=verification.tolerances(by, self._options.tolerance),
                worst=str(self._workspace.project / WORST_INPUTS_FOLDER / f"{name}.safetensors"),
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
            (*job.weights, *job.first_state),
            job.points,
            job.tolerances,
            versions,
            machine,
            job.ranges,
            quantized=partitioning.quantized,
            float_model=None if job.float_program is None else (job.float_program.graph, job.float_program.weights),
            has_rounded_weights=job.has_rounded_weights,
        )

    def _fetch_blobs(self, partitioning: PartitioningJob) -> None:
        """Fetch all blobs of a job into the local store."""
        workspace, plan = self._workspace, self._plan
        blobs = list(dict.fromkeys(partitioning.blobs()))
        workspace.lookups.keep_file_weights(plan.model, [sha256 for sha256 in blobs if sha256 in plan.file_weights])
        workspace.store.fetch(blobs)

    def _run_in_worker(self, partitioning: PartitioningJob) -> Report:
        self._fetch_blobs(partitioning)
        task = "verify-with-operators" if partitioning.job.operators else "verify"
        result = call(self._pool, task, partitioning.job).report
        if result is None:
            raise AssertionError("the verify task returned no report")
        return result

    # -- engines, if a suitable GPU exists

    def _engine_comparisons(self, partitioning: PartitioningJob, number: int) -> Iterator[_Comparison]:
        package = provenance_file.package_in_place(self._workspace.project, self._plan)
        if package is None:
            self._not_run += [
                NotRun(target=name, reason="its output directory does not have the planned package")
                for name in partitioning.targets
            ]
            return
        for name, gpu in engines_here.gpus_for_targets(package, partitioning.targets, self._options.device):
            reason = gpu if isinstance(gpu, str) else engines_here.reason_without_torch()
            if reason is not None or isinstance(gpu, str):
                self._not_run.append(NotRun(target=name, reason=reason or ""))
                continue
            plans = provenance_file.plans_of(package, name)  # from the package, because the build plan may lack some
            target_partitioning = replace(partitioning, targets=(name,), plans={name: plans})
            job = self._job_of_runner(target_partitioning, "engine", number, self._points, name)
            machine = engines_here.machine(gpu, self._platform)
            target = package.index.targets[name]
            reference = "onnxruntime" if partitioning.job.by_onnx else "torch"
            versions = {reference: self._versions[reference], target.toolchain: target.version}
            recipe = self._recipe("engine", job, plans, versions, machine)
            yield _Comparison("engine", job, recipe, machine, partial(self._run_engines, job, package, gpu))

    def _run_engines(self, partitioning: PartitioningJob, package: Package, gpu: engines_here.TargetGpu) -> Report:
        from trtbuild.stages.verify.custom_operators import registered
        from trtbuild.stages.verify.run import verify as compare
        from trtbuild.stages.verify.running import NotRunnable

        self._fetch_blobs(partitioning)
        roots = [self._workspace.project / root for root in partitioning.job.roots]
        with registered(partitioning.job.operators, roots), engines_here.OpenEngines(package, gpu) as engines:
            runner = engines_here.EngineRunner(engines, self._plan.shapes)
            try:
                return compare(partitioning.job, self._workspace.store.get_bytes, lambda *_: runner)
            except NotRunnable as error:
                raise NotCompared(str(error)) from error


def _failed_entry(name: str) -> ModelEntry:
    return ModelEntry(model=name, ok=False, status="failed")
