"""A build's log with every kind of event, and functions for the parts of other logs."""

from __future__ import annotations

from trtbuild.core.planning.graph import Reason, Stage, Verdict
from trtbuild.core.recipes.recipe import Change
from trtbuild.driver.answers.documents import ErrorEntry
from trtbuild.driver.event_log import events
from trtbuild.driver.event_log.events import Event, PlannedStep

NEW = Reason("new", "it was not built in this project before")
CHANGED = Reason("changed", "changed: onnx", (Change("onnx", "a" * 64, "b" * 64),))
RECORDED = Reason("recorded", "nothing that it depends on has changed")


def a_planned_step(
    stage: Stage,
    verdict: Verdict,
    *producers: str,
    model: str = "m",
    partition: str = "",
    target: str | None = None,
    key: str | None = None,
) -> PlannedStep:
    is_hit = verdict == "hit"
    id = f"{model}/{stage}" + (f"/{partition}" if partition else "") + (f"@{target}" if target else "")
    return PlannedStep(
        id=id,
        stage=stage,
        partition=partition,
        target=target,
        verdict=verdict,
        reason=RECORDED if is_hit else NEW,
        key=key or f"key of {id}",
        producers=producers,
        source="team" if is_hit else None,
        builder="ci@runner" if is_hit else None,
        finished="2026-01-01T00:00:00Z" if is_hit else None,
        saved_s=2.5 if is_hit else 0.0,
        output_bytes=1000 if is_hit else 0,
    )


def started(at_s: float, id: str, worker: str = "worker 1", reason: Reason = NEW) -> events.StepStarted:
    return events.StepStarted(at_s=at_s, id=id, worker=worker, reason=reason)


def finished(
    at_s: float, id: str, duration_s: float, worker: str = "worker 1", **others: object
) -> events.StepFinished:
    fields: dict[str, object] = {
        "verdict": "run",
        "source": "built",
        "key": f"key of {id}",
        "peak_rss_bytes": 2**28,
        "output_bytes": 5000,
        "builder": "u@h",
        **others,
    }
    return events.StepFinished(at_s=at_s, id=id, worker=worker, duration_s=duration_s, **fields)  # type: ignore[arg-type]


def a_log(model: str = "m") -> list[Event]:
    """A build of one model with two targets on two workers. The second engine fails."""
    trace = a_planned_step("trace", "hit", model=model)
    partition = a_planned_step("partition", "run", trace.id, model=model)
    convert = a_planned_step("convert", "hit", partition.id, model=model, partition="p0")
    ada, ampere = (
        a_planned_step("engine", "run", convert.id, model=model, partition="p0", target=target)
        for target in ("ada", "ampere")
    )
    package = a_planned_step("package", "unknown", ada.id, ampere.id, model=model)
    expected = a_planned_step("engine", "unknown", model=model, target="ada")
    error = ErrorEntry(
        type="ToolchainError", text="no kernel", file="m.yaml", line=3, hint="choose another type", step=ampere.id
    )
    return [
        events.BuildStarted(started="2026-01-02T03:04:05Z", trtbuild="0.1.0", builder="u@h"),
        events.PhaseStarted(at_s=0.0, name="plan"),
        events.PhaseFinished(at_s=0.1, name="plan", succeeded=True),
        events.ExecutionStarted(at_s=0.1, jobs=2),
        events.ModelPlanned(at_s=0.1, model=model, steps=[trace, partition, expected]),
        started(0.2, partition.id),
        finished(2.2, partition.id, 2.0, conversions={convert.key or "": 0.7}),
        events.ModelPlanned(at_s=2.2, model=model, steps=[convert, ada, ampere, package], removed=[expected.id]),
        started(2.3, ada.id, reason=CHANGED),
        started(2.3, ampere.id, "worker 2"),
        finished(5.3, ada.id, 3.0),
        events.StepFailed(at_s=4.3, id=ampere.id, worker="worker 2", error=error),
        events.OutputReady(at_s=5.4, model=model, kind="package", path="dist/m", written=True),
        events.BuildWarning(at_s=5.5, text="the disk is nearly full"),
        events.BuildFinished(at_s=5.5, status="failed", totals={}, errors=[error], remotes=[]),
    ]
