"""What a command tells when it is done: the documents of ``--json``, and the numbers for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtbuild.core.planning.graph import STAGES, Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.driver.project.outcome import Outcome, Written
from trtbuild.errors import ConfigurationErrors, FrozenError, ManifestErrors, TrtbuildError

Document = dict[str, Any]

#: No step takes longer; a record that says so is not believed.
_LONGEST_STEP_S = 30 * 86400.0


@dataclass
class BuildResult:
    """What a build came to."""

    outcome: Outcome
    written: list[Written] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[TrtbuildError] = field(default_factory=list)
    duration_s: float = 0.0
    #: What each remote was used for (`LayeredStore.reports`).
    remotes: list[Document] = field(default_factory=list)
    #: What `--verify` has found (``trtbuild.verify/1``).
    verification: Document | None = None

    @property
    def ok(self) -> bool:
        return self.outcome.ok and not self.errors


def build_document(result: BuildResult) -> Document:
    """``trtbuild.build/1``."""
    outcome = result.outcome
    steps = [entry for plan in outcome.plans.values() for entry in _built_steps(plan, outcome)]
    errors = [describe(error, step) for step, (_, error) in outcome.failed.items()]
    verification = {} if result.verification is None else {"verification": result.verification}
    return {
        "schema": "trtbuild.build/1",
        "ok": result.ok,
        "duration_s": round(result.duration_s, 3),
        "totals": totals(steps),
        "steps": steps,
        "outputs": [{"model": w.model, "kind": w.kind, "path": w.path, "written": w.changed} for w in result.written],
        "not_begun": outcome.not_begun,
        "errors": errors + [describe(error) for error in result.errors],
        "warnings": list(result.warnings),
        "remotes": result.remotes,
        **verification,
    }


def plan_document(plans: Mapping[str, ModelPlan], errors: Sequence[TrtbuildError], duration_s: float) -> Document:
    """``trtbuild.plan/1``: verdicts may be ``unknown``."""
    steps = [_entry(step) for plan in plans.values() for step in plan.steps.values()]
    return {
        "schema": "trtbuild.plan/1",
        "ok": not errors,
        "duration_s": round(duration_s, 3),
        "totals": totals(steps, unknown=True),
        "steps": steps,
        "outputs": [
            {"model": plan.model.name, "kind": kind, "path": path}
            for plan in plans.values()
            for kind, path in plan.model.outputs
        ],
        "errors": [described for error in errors for described in describe_all(error)],
        "warnings": [],
    }


def failure_document(schema: str, error: TrtbuildError) -> Document:
    """What exit code 2 leaves on stdout: no steps, all errors."""
    return {
        "schema": schema,
        "ok": False,
        "duration_s": 0.0,
        "totals": totals([]),
        "steps": [],
        "outputs": [],
        "errors": describe_all(error),
        "warnings": list(error.warnings) if isinstance(error, FrozenError) else [],
    }


def totals(steps: Sequence[Document], *, unknown: bool = False) -> dict[str, dict[str, int]]:
    """Verdicts by stage; all six stages are there."""
    verdicts = ["hit", "run", "failed", "skipped"] + (["unknown"] if unknown else [])
    found: dict[str, dict[str, int]] = {stage: dict.fromkeys(verdicts, 0) for stage in STAGES}
    for step in steps:
        found[step["stage"]][step["verdict"]] += 1
    return found


def describe_all(error: TrtbuildError) -> list[Document]:
    """One entry for each problem of a manifest or configuration, or one for any other error."""
    if isinstance(error, ConfigurationErrors):
        return [describe(problem) for problem in error.problems]
    if isinstance(error, ManifestErrors):
        return [
            {
                "type": "ManifestError",
                "text": problem.text,
                "file": problem.file,
                "line": problem.line,
                "column": problem.column,
                "hint": problem.hint,
            }
            for problem in error.problems
        ]
    return [describe(error)]


def describe(error: TrtbuildError, step: str | None = None) -> Document:
    """An error as JSON."""
    entry: Document = {
        "type": type(error).__name__,
        "text": error.text,
        "file": error.file,
        "line": error.line,
        "hint": error.hint,
    }
    if step is not None:
        entry["step"] = step
    if error.log_file is not None:
        entry["log"] = error.log_file
    return entry


def _entry(step: Step) -> Document:
    outputs = {name: output.to_json() for name, output in step.record.outputs.items()} if step.record else {}
    return {
        "id": step.id,
        "model": step.model,
        "stage": step.stage,
        "target": step.target,
        "key": step.key,
        "verdict": step.verdict,
        "source": step.source,
        "reason": step.reason.to_json(),
        "duration_s": 0.0,
        "saved_s": _saved_s(step),
        "outputs": outputs if step.verdict == "hit" else {},
    }


def _saved_s(step: Step) -> float:
    """What a step that was found took where it ran, in seconds, as its record says; which may be another machine's."""
    took_s = step.record.provenance.get("duration_s") if step.record is not None and step.verdict == "hit" else None
    if isinstance(took_s, bool) or not isinstance(took_s, (int, float)) or not 0 <= took_s < _LONGEST_STEP_S:
        return 0.0
    return round(float(took_s), 3)


def _built_steps(plan: ModelPlan, outcome: Outcome) -> list[Document]:
    entries = []
    for step in plan.steps.values():
        entry = _entry(step)
        if step.id in outcome.failed:
            reason, error = outcome.failed[step.id]
            entry.update(verdict="failed", source=None, reason=reason.to_json(), outputs={})
            described = describe(error)
            told = ("type", "text", "file", "line", "log")
            entry["error"] = {name: described[name] for name in told if name in described}
        elif step.id in outcome.ran:
            reason, ran = outcome.ran[step.id]
            outputs = {name: output.to_json() for name, output in ran.record.outputs.items()}
            entry.update(
                verdict="run",
                source="built",
                reason=reason.to_json(),
                duration_s=round(ran.duration_s, 3),
                saved_s=0.0,
                outputs=outputs,
            )
        elif step.verdict != "hit":
            entry.update(verdict="skipped", source=None, outputs={})
        entries.append(entry)
    return entries
