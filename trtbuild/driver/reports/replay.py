"""The state of a build after its events: the rows of its steps, its phases and its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trtbuild.core.planning.graph import Reason
from trtbuild.driver.event_log import events
from trtbuild.driver.reports.documents import Phase, RowVerdict, Status, StepRow

#: The reason of a convert step whose work a partition step has done.
_CONVERTED = Reason("new", "the partition step converted it to ask the parser")


@dataclass
class ReplayedBuild:
    """A build as its events describe it. `producers` maps step ids to the steps whose outputs the step reads.

    `last_s` is the time of the last event, in seconds since the start.
    """

    start: events.BuildStarted | None = None
    finish: events.BuildFinished | None = None
    jobs: int = 0
    last_s: float = 0.0
    steps: dict[str, StepRow] = field(default_factory=dict)
    producers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    outputs: list[events.OutputReady] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        return self.finish.status if self.finish is not None else "running"

    @property
    def started(self) -> str:
        return self.start.started if self.start is not None else ""

    @property
    def totals(self) -> dict[str, int]:
        """Verdict → the number of its steps. A verdict without steps is left out."""
        counts: dict[str, int] = {}
        for row in self.steps.values():
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
        return counts


def replay(log: Iterable[events.Event]) -> ReplayedBuild:
    """The build that `log` describes. The log may end at any event."""
    build = ReplayedBuild()
    open_phases: dict[str, float] = {}
    conversions: dict[str, float] = {}
    for event in log:
        build.last_s = max(build.last_s, event.at_s)
        match event:
            case events.BuildStarted():
                build.start = event
            case events.ExecutionStarted():
                build.jobs = event.jobs
            case events.ModelPlanned():
                _replan(build, event)
            case events.StepStarted(id=id) if id in build.steps:
                row = build.steps[id]
                build.steps[id] = replace(
                    row, verdict="running", reason=event.reason, start_s=event.at_s, worker=event.worker
                )
            case events.StepFinished(id=id) if id in build.steps:
                build.steps[id] = _finished(build.steps[id], event)
                conversions.update(event.conversions)
            case events.StepFailed(id=id) if id in build.steps:
                row = build.steps[id]
                start_s = event.at_s if row.start_s is None else row.start_s
                build.steps[id] = replace(
                    row, verdict="failed", end_s=event.at_s, duration_s=event.at_s - start_s, error=event.error
                )
            case events.PhaseStarted():
                open_phases[event.name] = event.at_s
            case events.PhaseFinished(name=name) if name in open_phases:
                build.phases.append(Phase(name=name, start_s=open_phases.pop(name), end_s=event.at_s))
            case events.OutputReady():
                build.outputs.append(event)
            case events.BuildWarning():
                build.warnings.append(event.text)
            case events.BuildFinished():
                build.finish = event
            case _:
                pass
    build.phases += [Phase(name=name, start_s=start_s, end_s=build.last_s) for name, start_s in open_phases.items()]
    _note_conversions(build, conversions)
    return build


def _replan(build: ReplayedBuild, event: events.ModelPlanned) -> None:
    """Add the steps of a new plan of a model, and remove steps that have not started and are not in the plan.

    A failed step keeps its row. A step that is running or was run keeps its row, unless it has to run again."""
    for id in event.removed:
        if id in build.steps and build.steps[id].start_s is None:
            del build.steps[id]
    for step in event.steps:
        build.producers[step.id] = tuple(step.producers)
        row = build.steps.get(step.id)
        if row is not None and row.verdict == "running" and step.verdict == "hit":
            continue  # the step has announced its results, and still checks them
        if row is not None and row.start_s is not None and row.verdict in ("run", "failed"):
            if step.verdict == "hit":  # this plan has found the record of the run
                build.steps[step.id] = replace(row, key=step.key)
                continue
            if row.verdict == "failed":
                continue  # a plan does not show that a step has failed
        planned = _planned_row(event.model, step)
        if row is not None and row.start_s is not None and row.verdict == "hit" and step.verdict == "hit":
            # the step waited for another build, and this plan has found the record of that build
            planned = replace(
                planned, start_s=row.start_s, end_s=row.end_s, duration_s=row.duration_s, worker=row.worker
            )
        build.steps[step.id] = planned


def _planned_row(model: str, step: events.PlannedStep) -> StepRow:
    verdict: RowVerdict = "hit" if step.verdict == "hit" else "skipped"
    return StepRow(
        id=step.id,
        model=model,
        stage=step.stage,
        partition=step.partition,
        target=step.target,
        verdict=verdict,
        reason=step.reason,
        key=step.key,
        source=step.source,
        builder=step.builder,
        finished=step.finished,
        start_s=None,
        end_s=None,
        duration_s=0.0,
        saved_s=step.saved_s,
        worker=None,
        peak_rss_bytes=None,
        output_bytes=step.output_bytes,
        waited_for=None,
        waited_s=0.0,
        critical=False,
        signer=None,
        uncacheable=None,
        farm_worker=None,
        error=None,
    )


def _finished(row: StepRow, event: events.StepFinished) -> StepRow:
    return replace(
        row,
        verdict=event.verdict,
        source=event.source,
        key=event.key,
        builder=event.builder,
        end_s=event.at_s,
        duration_s=event.duration_s,
        saved_s=0.0,
        peak_rss_bytes=event.peak_rss_bytes,
        output_bytes=event.output_bytes,
        uncacheable=event.uncacheable,
        farm_worker=event.farm_worker,
    )


def _note_conversions(build: ReplayedBuild, conversions: Mapping[str, float]) -> None:
    """Count a convert step as run, and not as a hit, if a partition step of this build has done its work.

    `conversions` maps keys of convert steps to the seconds that the conversion took.
    """
    remaining = dict(conversions)
    for id, row in build.steps.items():
        if row.stage == "convert" and row.verdict == "hit" and row.key in remaining:
            duration_s = remaining.pop(row.key)
            build.steps[id] = replace(
                row, verdict="run", source="built", reason=_CONVERTED, duration_s=duration_s, saved_s=0.0
            )
