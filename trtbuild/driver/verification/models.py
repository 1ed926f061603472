"""``trtbuild verify [MODEL…]``: compare the conversions and engines of a project's models with PyTorch.

Rules
1. A verification is not repeated for the same recipe (docs/keys.md). The recipe has the programs, weights, points, ranges
   of inputs, tolerances, versions, the machine, and either the conversions or the engines. The record of a verification is
   in the store. ``--force`` and ``--replay`` ignore the record. Failed verifications are not recorded.
2. The results are written to provenance.json in the package's directory, if the package is the one that was verified
   (`core.packages.provenance`). If this verification has no result for the engines of a target, the target's earlier
   results about the same engines stay. If a comparison fails, the file is removed. With ``--replay`` the file does not
   change.
3. onnxruntime runs converted partitions in a worker process. Engines run in this process, if a suitable GPU exists, or on
   the workers of a scheduler. For a model that comes as ONNX, only the engines are compared, and onnxruntime on the CPU is
   the reference.
4. With a scheduler, the comparisons of the engines of all models begin first. This machine then compares the conversions,
   while the workers compare the engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from trtbuild.core.model.comparisons import Report, Status
from trtbuild.core.model.verified import CutEntry, ModelEntry, NotRun
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import ErrorEntry, Verification
from trtbuild.driver.building.operator_warnings import operator_warnings
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.gpu_comparisons import engines as engines_here
from trtbuild.driver.gpu_comparisons.versions import installed_versions
from trtbuild.driver.packages import provenance_file
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.driver.verification import records
from trtbuild.driver.verification.document import (
    ADVICE_FOR_ONNX,
    ADVICE_FOR_PYTORCH,
    Options,
    internal_error,
    verification_document,
)
from trtbuild.driver.verification.float_traces import NoFloatTrace, float_program
from trtbuild.driver.verification.jobs import PartitioningJob, missing_steps, partitioning_jobs, unique_points
from trtbuild.driver.verification.subject import Compared, Comparison, EngineComparisons, NotRunHere, Subject
from trtbuild.driver.verification.worker_comparisons import engine_comparisons
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import NotCompared, TrtbuildError, UsageError
from trtbuild.stages.verify.job import FloatProgram

_Result = TypeVar("_Result")


def verify(request: Request, options: Options, watcher: Watcher) -> Verification:
    """Verify models, and return the document ``trtbuild.verify/1``.

    `ok` is false if a comparison fails, if `Options.excess` rejects a model, if a step has no record, or if the
    verification of a model ends with an exception.

    Raises ToolchainMissing if onnxruntime, torch or onnx is not installed. Raises UsageError if a replay is not for one
    model, if the device does not exist, or if a device and workers are given. Raises EnvironmentFault if the workers cannot
    be used.
    """
    started = time.monotonic()
    if options.device is not None and request.workers is not None:
        raise UsageError(
            "--device is for engines that run on this machine, and --workers for other machines",
            hint="leave one of them out",
        )
    engines_here.usable_gpus(options.device)  # an unknown device is an error before any work
    workspace = Workspace(replace(request, force=False))
    if options.replay is not None and len(workspace.models) != 1:
        raise UsageError("--replay is for one model", hint="name it: trtbuild verify MODEL --replay FILE")
    versions = installed_versions()
    all_models = _Models()
    messages: list[str] = []
    subjects: dict[str, Subject] = {}
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)
    try:
        with workspace.store.session():
            for name in workspace.models:
                make = partial(Subject, workspace, name, options, versions, force=request.force)
                if (subject := all_models.attempt(name, make)) is not None:
                    subjects[name] = subject
            workers = workspace.workers if options.device is None else None
            with engine_comparisons(subjects.values(), workers, watcher, messages) as engines:
                models = {name: _ModelVerification(subject, pool, engines) for name, subject in subjects.items()}
                if workers is not None:  # rule 4
                    for name, model in models.items():
                        all_models.attempt(name, model.begin)
                for name, model in models.items():
                    all_models.verify(name, model, watcher)
        workspace.store.finish()
    finally:
        pool.close(kill=True)
        workspace.store.close()
    warnings = [
        *workspace.store.warnings(),
        *messages,
        *operator_warnings([subject.plan for subject in subjects.values()]),
    ]
    entries = [all_models.entries[name] for name in workspace.models]
    return verification_document(options, started, entries, all_models.errors, warnings)


class _Models:
    """The entries of all models, by name, and the errors of the models that could not be verified."""

    def __init__(self) -> None:
        self.entries: dict[str, ModelEntry] = {}
        self.errors: list[ErrorEntry] = []

    def attempt(self, name: str, do: Callable[[], _Result]) -> _Result | None:
        """Return the result of `do`. If it ends with an error of the model `name`, note the error, and return None.

        Raises errors with another exit code than 1: those of the command line, of a manifest or of this machine.
        """
        try:
            return do()
        except TrtbuildError as error:
            if error.exit_code != 1:
                raise
            self.errors.append(report.describe(error))
        except Exception as error:
            self.errors.append(report.describe(internal_error(error)))
        self.entries[name] = ModelEntry(model=name, ok=False, status="failed")
        return None

    def verify(self, name: str, model: _ModelVerification, watcher: Watcher) -> None:
        """Verify a model, unless it has failed before."""

        def make_entry() -> ModelEntry:
            with watcher.work(f"verify {name}") as work:
                entry = model.verify()
                work.failed = not entry.ok
            return entry

        if name not in self.entries and (entry := self.attempt(name, make_entry)) is not None:
            self.entries[name] = entry


class _ModelVerification:
    """The verification of one model. A cut is one way to divide the model into partitions."""

    def __init__(self, subject: Subject, pool: WorkerPool, engines: EngineComparisons) -> None:
        self._subject = subject
        self._pool = pool
        self._engines = engines
        self._comparisons: list[Comparison] | None = None
        #: Targets whose engines did not run, with the reason.
        self._not_run: list[NotRun] = []
        self._is_quantized = False
        #: The reason why a model with ``quantize:`` has no float model; empty if it has one.
        self._no_float_trace = ""

    def begin(self) -> list[Comparison]:
        """Return the comparisons; an empty list if they cannot be made. The first call starts those that run on workers."""
        if self._comparisons is None:
            plan = self._subject.plan
            can_compare = not missing_steps(plan) and plan.model.source.graph.reference is not None
            self._comparisons = list(self._all_comparisons()) if can_compare else []
        return self._comparisons

    def verify(self) -> ModelEntry:
        """Verify the model, write its provenance, and return its entry of the document."""
        subject = self._subject
        plan, name, precision = subject.plan, subject.name, subject.plan.model.precision
        steps = missing_steps(plan)
        if steps:
            missing = [step.id for step in steps]
            return ModelEntry(model=name, ok=False, status="missing", missing=missing, precision=precision)
        source = plan.model.source
        if source.graph.reference is None:
            reason = f"it comes from `{source.kind}`: there is no PyTorch model to compare with"
            not_run = [NotRun(target=target.name, reason=reason) for target in plan.model.targets]
            return ModelEntry(model=name, ok=True, status="unchecked", not_run=not_run, precision=precision)
        entries = [entry for comparison in self.begin() if (entry := self._entry(comparison)) is not None]
        cuts = records.add_tf32_hints(entries, plan.model.builder.tf32)
        statuses = {cut.status for cut in cuts}
        status: Status = "wrong" if "wrong" in statuses else "right" if statuses == {"right"} else "unchecked"
        if subject.replay is None and status == "wrong":
            provenance_file.remove_of(subject.workspace.project, plan)
        elif subject.replay is None:
            provenance_file.write(subject.workspace.project, plan, cuts)
        advice = ADVICE_FOR_ONNX if source.graph.reference == "onnxruntime" else ADVICE_FOR_PYTORCH
        exceeds = subject.options.excess(cuts, "" if self._no_float_trace else advice, quantized=self._is_quantized)
        return ModelEntry(
            model=name,
            ok=status != "wrong" and exceeds is None,
            status=status,
            cuts=cuts,
            not_run=self._not_run,
            precision=precision,
            exceeds=exceeds,
        )

    def _entry(self, comparison: Comparison) -> CutEntry | None:
        """Finish a comparison, and return its entry. If the comparison cannot run, note the reason, and return None."""
        try:
            compared: Compared = comparison.finish()
        except NotCompared as error:
            self._not_run += [NotRun(target=name, reason=error.text) for name in comparison.targets]
            return None
        report = compared.report
        if self._no_float_trace and report.float_error is not None:
            report = replace(report, float_error=report.float_error.explained(self._no_float_trace))
        return records.comparison_entry(
            report,
            self._subject.labels,
            targets=compared.partitioning.targets,
            toolchain=compared.partitioning.toolchain,
            plans=compared.partitioning.plans,
            machine=compared.machine,
            provenance=compared.record.provenance if compared.record is not None else {},
            key=compared.recipe.key,
            recorded=compared.recorded,
            worker=compared.worker,
        )

    def _all_comparisons(self) -> Iterator[Comparison]:
        subject = self._subject
        replay = None if subject.replay is None else str(subject.replay)
        partitionings = partitioning_jobs(
            subject.workspace, subject.plan, subject.points, replay=replay, float_program=self._float_program()
        )
        for number, partitioning in enumerate(partitionings):
            self._is_quantized = partitioning.quantized
            if not partitioning.job.by_onnx:
                yield self._by_onnxruntime(partitioning, number)
            for found in self._engines.comparisons(subject, partitioning, number):
                if isinstance(found, NotRunHere):
                    self._not_run.append(NotRun(target=found.target, reason=found.reason))
                else:
                    yield found

    def _by_onnxruntime(self, partitioning: PartitioningJob, number: int) -> Comparison:
        """The comparison of the conversions of a partitioning. It runs in a worker process of this machine."""
        subject = self._subject
        job = subject.job_of_runner(partitioning, "onnxruntime", number, unique_points(subject.points))
        machine: Mapping[str, str] = {"platform": subject.platform}
        recipe = subject.recipe("onnxruntime", job, partitioning.job.onnx, subject.versions, machine)
        run: Callable[[], Report] = partial(self._run_in_worker, job)
        return Comparison(partitioning.targets, partial(subject.find_or_run, job, recipe, machine, run))

    def _float_program(self) -> FloatProgram | None:
        """Return the float model of a model with ``quantize:``; None for other models, or if there is no float trace."""
        if self._subject.plan.model.quantization is None:
            return None
        try:
            return float_program(self._subject.workspace, self._subject.plan, self._pool)
        except NoFloatTrace as error:
            self._no_float_trace = f"; there is no trace of the model without `quantize:`: {error}"
            return None

    def _run_in_worker(self, partitioning: PartitioningJob) -> Report:
        self._subject.fetch_blobs(partitioning)
        task = "verify-with-operators" if partitioning.job.operators else "verify"
        result = call(self._pool, task, partitioning.job).report
        if result is None:
            raise AssertionError("the verify task returned no report")
        return result
