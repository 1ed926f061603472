"""Make the documents of plans, builds and failed commands.

`documents` has their classes. ``--json`` prints a document as JSON. Otherwise `trtbuild.cli.screens` prints it as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtbuild.core.model.shapes import axes_of_symbol, kept_symbols
from trtbuild.core.planning.graph import STAGES, Stage, Step, Verdict
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.driver.answers.documents import (
    Build,
    BuiltOutput,
    EqualAxes,
    ErrorEntry,
    Failure,
    Plan,
    PlannedOutput,
    StepEntry,
    StepError,
    Totals,
    Verification,
)
from trtbuild.driver.project.outcome import Outcome, WrittenOutput
from trtbuild.errors import ConfigurationErrors, FrozenError, ManifestErrors, TrtbuildError
from trtbuild.store.layers.remote_statistics import RemoteStatistics

#: A recorded duration that is at least this long is ignored. Any machine may have written it, so it may be wrong.
_LONGEST_STEP_S = 30 * 86400.0


@dataclass
class BuildResult:
    """The result of a build: the outcome of its steps, the outputs that it wrote, and its warnings and errors.

    `errors` are those that belong to no step. The errors of steps are in `outcome`."""

    outcome: Outcome
    written: list[WrittenOutput] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[TrtbuildError] = field(default_factory=list)
    duration_s: float = 0.0
    #: How this build used each remote cache.
    remotes: list[RemoteStatistics] = field(default_factory=list)
    #: The document of ``build --verify``; None without this flag.
    verification: Verification | None = None

    @property
    def ok(self) -> bool:
        return self.outcome.ok and not self.errors


def build_document(result: BuildResult) -> Build:
    outcome = result.outcome
    steps = _built_steps(outcome)
    errors = [describe(error, step) for step, (_, error) in outcome.failed.items()]
    return Build(
        ok=result.ok,
        duration_s=round(result.duration_s, 3),
        totals=totals(steps),
        steps=steps,
        outputs=[
            BuiltOutput(model=output.model, kind=output.kind, path=output.path, written=output.changed)
            for output in result.written
        ],
        not_begun=outcome.not_begun,
        errors=errors + [describe(error) for error in result.errors],
        warnings=list(result.warnings),
        remotes=result.remotes,
        verification=result.verification,
    )


def plan_document(
    plans: Mapping[str, ModelPlan],
    errors: Sequence[TrtbuildError],
    duration_s: float,
    warnings: Sequence[str],
    remotes: Sequence[RemoteStatistics],
) -> Plan:
    steps = [_step_entry(step) for plan in plans.values() for step in plan.steps.values()]
    return Plan(
        ok=not errors,
        duration_s=round(duration_s, 3),
        totals=totals(steps, with_unknown=True),
        steps=steps,
        outputs=[
            PlannedOutput(model=plan.model.name, kind=kind, path=path)
            for plan in plans.values()
            for kind, path in plan.model.outputs
        ],
        equal_axes=[entry for plan in plans.values() for entry in _equal_axes(plan)] or None,
        errors=[entry for error in errors for entry in error_entries(error)],
        warnings=warnings,
        remotes=remotes,
    )


def _equal_axes(plan: ModelPlan) -> list[EqualAxes]:
    """One entry for each group of symbols (variables for dims) that the trace has joined to one symbol."""
    kept = kept_symbols(len(plan.declared_shapes.symbols), plan.ties)
    group_sizes = Counter(kept)
    # one symbol of each group is kept, and `plan.shapes` numbers the kept symbols in their order
    joined_numbers = [number for number, symbol in enumerate(dict.fromkeys(kept)) if group_sizes[symbol] > 1]
    return [
        EqualAxes(model=plan.model.name, axes=axes_of_symbol(plan.shapes, plan.model.inputs, number))
        for number in joined_numbers
    ]


def failure_document(schema: str, error: TrtbuildError, outcome: Outcome | None = None) -> Failure:
    """The document of a command that `error` has ended. `schema` is that of the command's usual document.

    `outcome` is that of an interrupted build."""
    return Failure(
        schema=schema,
        ok=False,
        duration_s=0.0,
        totals=outcome_totals(outcome),
        steps=[],
        outputs=[],
        errors=error_entries(error),
        warnings=list(error.warnings) if isinstance(error, FrozenError) else [],
    )


def totals(steps: Sequence[StepEntry], *, with_unknown: bool = False) -> Totals:
    """Stage → verdict → number of steps. If `with_unknown`, the verdicts include ``unknown``."""
    verdicts: list[Verdict] = ["hit", "run", "failed", "skipped"]
    if with_unknown:
        verdicts.append("unknown")
    counts: dict[Stage, dict[Verdict, int]] = {stage: dict.fromkeys(verdicts, 0) for stage in STAGES}
    for step in steps:
        counts[step.stage][step.verdict] += 1
    return counts


def outcome_totals(outcome: Outcome | None) -> Totals:
    """The totals of a build, which may have been interrupted. All are 0 for None, a command that has not begun a build."""
    return totals([] if outcome is None else _built_steps(outcome))


def error_entries(error: TrtbuildError) -> list[ErrorEntry]:
    """One entry for each problem of a manifest or of a configuration; one entry for any other error."""
    if isinstance(error, ConfigurationErrors):
        return [describe(problem) for problem in error.problems]
    if isinstance(error, ManifestErrors):
        return [ErrorEntry(type="ManifestError", **vars(problem)) for problem in error.problems]
    return [describe(error)]


def describe(error: TrtbuildError, step: str | None = None, package: str | None = None) -> ErrorEntry:
    """The entry of an error in a document. `step` and `package` are where the error happened."""
    return ErrorEntry(
        package=package,
        type=type(error).__name__,
        text=error.text,
        file=error.file,
        line=error.line,
        hint=error.hint,
        step=step,
        log=error.log_file,
    )


def _step_entry(step: Step) -> StepEntry:
    return StepEntry(
        id=step.id,
        model=step.model,
        stage=step.stage,
        target=step.target,
        key=step.key,
        verdict=step.verdict,
        source=step.source,
        reason=step.reason,
        duration_s=0.0,
        saved_s=saved_s(step),
        outputs=step.record.outputs if step.record is not None and step.verdict == "hit" else {},
    )


def saved_s(step: Step) -> float:
    """The seconds that a hit took when it ran, here or on another machine; 0 for other steps, or if not known."""
    duration_s = step.record.provenance.get("duration_s") if step.record is not None and step.verdict == "hit" else None
    if (
        isinstance(duration_s, bool)
        or not isinstance(duration_s, (int, float))
        or not 0 <= duration_s < _LONGEST_STEP_S
    ):
        return 0.0
    return round(float(duration_s), 3)


def _built_steps(outcome: Outcome) -> list[StepEntry]:
    entries = []
    for step in (step for plan in outcome.plans.values() for step in plan.steps.values()):
        entry = _step_entry(step)
        if step.id in outcome.failed:
            reason, error = outcome.failed[step.id]
            step_error = StepError(
                type=type(error).__name__, text=error.text, file=error.file, line=error.line, log=error.log_file
            )
            entry = replace(entry, verdict="failed", source=None, reason=reason, outputs={}, error=step_error)
        elif step.id in outcome.ran:
            reason, ran = outcome.ran[step.id]
            entry = replace(
                entry,
                verdict="run",
                source="built",
                reason=reason,
                duration_s=round(ran.duration_s, 3),
                saved_s=0.0,
                outputs=ran.record.outputs,
                worker=ran.worker,
            )
        elif step.verdict != "hit" or step.key in outcome.unpublished_keys:
            entry = replace(entry, verdict="skipped", source=None, outputs={})
        entries.append(entry)
    return entries
