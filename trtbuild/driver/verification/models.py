"""``trtbuild verify [MODEL…]``: compare the conversions and engines of a project's models with PyTorch.

Rules
1. A comparison is not repeated for the same recipe (docs/keys.md). The recipe has the programs, weights, points, ranges
   of inputs, tolerances, versions, the machine, and either the conversions or the engines. The store keeps a record of each
   comparison without a wrong result. ``--force`` and ``--replay`` ignore the records.
2. The results are written to provenance.json in the package's directory, if this directory has the planned package
   (`core.packages.provenance`). If the engines of a target were not compared this time, earlier results about the
   same engines stay. If a result is wrong, the file is removed. With ``--replay`` the file does not change.
3. onnxruntime runs the conversions, which are the ONNX models of partitions, in a worker process. Engines run in this
   process, if a suitable GPU exists, or on the workers of a Dask scheduler. For a model that comes as ONNX, only the
   engines are compared. Their reference is onnxruntime on the CPU.
4. With a scheduler, the comparisons of all engines begin first. This machine compares the conversions meanwhile.
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
from trtbuild.driver.verification.cuts import CutVerification, missing_steps, unique_points, verifications_of
from trtbuild.driver.verification.document import (
    ADVICE_FOR_ONNX,
    ADVICE_FOR_PYTORCH,
    Options,
    internal_error,
    verification_document,
)
from trtbuild.driver.verification.float_traces import NoFloatTrace, float_program
from trtbuild.driver.verification.verified_model import (
    EngineComparisons,
    FinishedComparison,
    PendingComparison,
    VerifiedModel,
)
from trtbuild.driver.verification.worker_comparisons import engine_comparisons
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call
from trtbuild.errors import NotCompared, TrtbuildError, UsageError
from trtbuild.stages.verify.job import FloatProgram

_Result = TypeVar("_Result")


def verify(request: Request, options: Options, watcher: Watcher) -> Verification:
    """Verify models, and return the document ``trtbuild.verify/1``.

    `ok` is false if a result is wrong, if ``--max-error`` rejects a model (`Options.why_rejected`), if a needed step has
    no record, or if the verification of a model ends with an exception.

    Raises ToolchainMissing if onnxruntime, torch or onnx is not installed, and EnvironmentFault if the workers cannot be
    used. Raises UsageError if the device does not exist, if a replay is not for one model, or if both a device and workers
    are given. Errors of the manifests and of the lock file are raised, too.
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
    results = _Results()
    messages: list[str] = []
    models: dict[str, VerifiedModel] = {}
    pool = WorkerPool(wiring.store_root(workspace.project), workspace.project)
    try:
        with workspace.store.session():
            for name in workspace.models:
                make = partial(VerifiedModel, workspace, name, options, versions, force=request.force)
                if (model := results.attempt(name, make)) is not None:
                    models[name] = model
            workers = workspace.workers if options.device is None else None
            with engine_comparisons(models.values(), workers, watcher, messages) as engines:
                verifications = {name: _ModelVerification(model, pool, engines) for name, model in models.items()}
                if workers is not None:  # rule 4
                    for name, verification in verifications.items():
                        results.attempt(name, verification.begin)
                for name, verification in verifications.items():
                    results.verify(name, verification, watcher)
        workspace.store.finish()
    finally:
        pool.close(kill=True)
        workspace.store.close()
    warnings = [
        *workspace.store.warnings(),
        *messages,
        *operator_warnings([model.plan for model in models.values()]),
    ]
    entries = [results.entries[name] for name in workspace.models]
    return verification_document(options, started, entries, results.errors, warnings)


class _Results:
    """The entries of all models by name, and the errors of models that could not be verified."""

    def __init__(self) -> None:
        self.entries: dict[str, ModelEntry] = {}
        self.errors: list[ErrorEntry] = []

    def attempt(self, name: str, do: Callable[[], _Result]) -> _Result | None:
        """Return the result of `do`. If `do` fails because of the model `name`, note the error, and return None.

        An error whose exit code is not 1 is raised, because it is about the command line, a manifest or this machine.
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

    def verify(self, name: str, verification: _ModelVerification, watcher: Watcher) -> None:
        """Verify the model `name`, unless it has failed before."""

        def make_entry() -> ModelEntry:
            with watcher.work(f"verify {name}") as work:
                entry = verification.verify()
                work.failed = not entry.ok
            return entry

        if name not in self.entries and (entry := self.attempt(name, make_entry)) is not None:
            self.entries[name] = entry


class _ModelVerification:
    """The verification of one model. Each finished comparison becomes an item of `cuts` in the model's entry."""

    def __init__(self, model: VerifiedModel, pool: WorkerPool, engines: EngineComparisons) -> None:
        self._model = model
        self._pool = pool
        self._engines = engines
        self._comparisons: list[PendingComparison] | None = None
        #: Targets whose engines did not run, with the reason.
        self._not_run: list[NotRun] = []
        self._is_quantized = False
        #: The reason why a model with ``quantize:`` has no float model; empty if it has one.
        self._no_float_trace = ""

    def begin(self) -> list[PendingComparison]:
        """Return the comparisons, or [] if nothing can be compared. The first call sends jobs to Dask workers."""
        if self._comparisons is None:
            plan = self._model.plan
            can_compare = not missing_steps(plan) and plan.model.source.graph.reference is not None
            self._comparisons = list(self._all_comparisons()) if can_compare else []
        return self._comparisons

    def verify(self) -> ModelEntry:
        """Verify the model, write or remove its provenance (rule 2), and return its entry in the document."""
        model = self._model
        plan, name, precision = model.plan, model.name, model.plan.model.precision
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
        if model.replay is None and status == "wrong":
            provenance_file.remove_from_output(model.workspace.project, plan)
        elif model.replay is None:
            provenance_file.write(model.workspace.project, plan, cuts)
        advice = ADVICE_FOR_ONNX if source.graph.reference == "onnxruntime" else ADVICE_FOR_PYTORCH
        exceeds = model.options.why_rejected(cuts, "" if self._no_float_trace else advice, quantized=self._is_quantized)
        return ModelEntry(
            model=name,
            ok=status != "wrong" and exceeds is None,
            status=status,
            cuts=cuts,
            not_run=self._not_run,
            precision=precision,
            exceeds=exceeds,
        )

    def _entry(self, comparison: PendingComparison) -> CutEntry | None:
        """Finish a comparison, and return its entry. If the comparison cannot run, note the reason, and return None."""
        try:
            compared: FinishedComparison = comparison.finish()
        except NotCompared as error:
            self._not_run += [NotRun(target=name, reason=error.text) for name in comparison.targets]
            return None
        report = compared.report
        if self._no_float_trace and report.float_error is not None:
            report = replace(report, float_error=report.float_error.explained(self._no_float_trace))
        return records.comparison_entry(
            report,
            self._model.labels,
            targets=compared.cut.targets,
            toolchain=compared.cut.toolchain,
            plans=compared.cut.plans,
            machine=compared.machine,
            provenance=compared.record.provenance if compared.record is not None else {},
            key=compared.recipe.key,
            recorded=compared.recorded,
            worker=compared.worker,
        )

    def _all_comparisons(self) -> Iterator[PendingComparison]:
        model = self._model
        replay = None if model.replay is None else str(model.replay)
        cuts = verifications_of(
            model.workspace, model.plan, model.points, replay=replay, float_program=self._float_program()
        )
        for number, cut in enumerate(cuts):
            self._is_quantized = cut.quantized
            if not cut.verify_job.by_onnx:
                yield self._onnxruntime_comparison(cut, number)
            for found in self._engines.comparisons(model, cut, number):
                if isinstance(found, NotRun):
                    self._not_run.append(found)
                else:
                    yield found

    def _onnxruntime_comparison(self, cut: CutVerification, number: int) -> PendingComparison:
        """The comparison of a cut's conversions. `number` is the index of the cut in the model."""
        model = self._model
        by_onnxruntime = model.verification_by(cut, "onnxruntime", number, unique_points(model.points))
        machine: Mapping[str, str] = {"platform": model.platform}
        recipe = model.recipe("onnxruntime", by_onnxruntime, cut.verify_job.onnx, model.versions, machine)
        run: Callable[[], Report] = partial(self._run_in_worker, by_onnxruntime)
        return PendingComparison(cut.targets, partial(model.find_or_run, by_onnxruntime, recipe, machine, run))

    def _float_program(self) -> FloatProgram | None:
        """Return the float model of a model with ``quantize:``; None for other models, or without a float trace."""
        if self._model.plan.model.quantization is None:
            return None
        try:
            return float_program(self._model.workspace, self._model.plan, self._pool)
        except NoFloatTrace as error:
            self._no_float_trace = f"; there is no trace of the model without `quantize:`: {error}"
            return None

    def _run_in_worker(self, cut: CutVerification) -> Report:
        self._model.fetch_blobs(cut)
        task = "verify-with-operators" if cut.verify_job.operators else "verify"
        result = call(self._pool, task, cut.verify_job).report
        if result is None:
            raise AssertionError("the verify task returned no report")
        return result
