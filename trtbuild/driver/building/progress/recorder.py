"""The watcher that turns the calls of a build into events of `driver.event_log`, for ``--events`` and reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes.record import Record
from trtbuild.driver.answers import report
from trtbuild.driver.answers.documents import Build
from trtbuild.driver.building.progress.events import LastDuration, Watcher
from trtbuild.driver.building.progress.lanes import Lanes
from trtbuild.driver.configuration.builder import builder_name
from trtbuild.driver.event_log import events
from trtbuild.driver.event_log.lines import Sink
from trtbuild.driver.project.outcome import Interrupted, StepRun, WrittenOutput
from trtbuild.errors import TrtbuildError
from trtbuild.toolchain.libraries.distributions import installed_version


class Recorder(Watcher):
    """Passes the events of a build to `sinks`, such as a file. Times count from the creation of the recorder.

    The first event names the builder, which is ``user@host``.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._lock = threading.Lock()
        self._start_s = time.perf_counter()
        self._lanes = Lanes("worker")
        #: Step id → lane (a row of the timeline), for the running steps.
        self._lanes_by_step: dict[str, int] = {}
        #: Model → the steps of its last plan, by id.
        self._planned: dict[str, dict[str, Step]] = {}
        #: Whether the last event is written, or the recorder is closed. Later events come from threads of an interrupted
        #: build, and are ignored.
        self._ended = False
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write(
            events.BuildStarted(started=started, trtbuild=installed_version("trtbuild") or "", builder=builder_name())
        )

    def build_started(self, jobs: int, last_duration_s: LastDuration) -> None:
        with self._lock:
            self._write(events.ExecutionStarted(at_s=self._now_s(), jobs=jobs))

    def model_planned(self, plan: ModelPlan) -> None:
        with self._lock:
            before = self._planned.get(plan.model.name, {})
            now = self._planned[plan.model.name] = dict(plan.steps)
            self._write(
                events.ModelPlanned(
                    at_s=self._now_s(),
                    model=plan.model.name,
                    steps=[_planned_step(step) for step in now.values() if not _is_same(before.get(step.id), step)],
                    removed=[step_id for step_id in before if step_id not in now],
                )
            )

    def step_started(self, step: Step) -> None:
        with self._lock:
            if step.id in self._lanes_by_step:  # the step could not read a blob, and starts again
                self._free_worker(step)
            lane = self._lanes_by_step[step.id] = self._lanes.add(step.id)
            worker = self._lanes.name_of(lane)
            self._write(events.StepStarted(at_s=self._now_s(), id=step.id, worker=worker, reason=step.reason))

    def step_finished(self, step: Step, ran: StepRun) -> None:
        with self._lock:
            self._write(
                events.StepFinished(
                    at_s=self._now_s(),
                    id=step.id,
                    worker=self._free_worker(step),
                    verdict="run" if ran.source == "built" else "hit",
                    source=ran.source,
                    key=ran.record.recipe.key,
                    duration_s=round(ran.duration_s, 3),
                    peak_rss_bytes=ran.peak_rss_bytes or None,
                    output_bytes=_output_bytes(ran.record),
                    builder=_text(ran.record, "builder"),
                    conversions={key: round(seconds, 3) for key, seconds in ran.conversions.items()},
                    uncacheable=ran.uncacheable,
                    farm_worker=ran.worker,
                )
            )

    def step_failed(self, step: Step, error: TrtbuildError) -> None:
        with self._lock:
            worker, entry = self._free_worker(step), report.describe(error, step.id)
            self._write(events.StepFailed(at_s=self._now_s(), id=step.id, worker=worker, error=entry))

    def phase_started(self, name: str) -> None:
        with self._lock:
            self._write(events.PhaseStarted(at_s=self._now_s(), name=name))

    def phase_finished(self, name: str, *, succeeded: bool) -> None:
        with self._lock:
            self._write(events.PhaseFinished(at_s=self._now_s(), name=name, succeeded=succeeded))

    def outputs_written(self, outputs: Sequence[WrittenOutput]) -> None:
        with self._lock:
            for output in outputs:
                self._write(
                    events.OutputReady(
                        at_s=self._now_s(),
                        model=output.model,
                        kind=output.kind,
                        path=output.path,
                        written=output.changed,
                    )
                )

    def build_finished(self, document: Build) -> None:
        with self._lock:
            for text in dict.fromkeys(document.warnings):
                self._write(events.BuildWarning(at_s=self._now_s(), text=text))
            self._write(
                events.BuildFinished(
                    at_s=self._now_s(),
                    status="done" if document.ok else "failed",
                    totals=document.totals,
                    errors=document.errors,
                    remotes=document.remotes,
                )
            )

    def build_stopped(self, error: BaseException) -> None:
        with self._lock:
            entries = report.error_entries(error) if isinstance(error, TrtbuildError) else []
            self._write(
                events.BuildFinished(
                    at_s=self._now_s(),
                    status="error" if isinstance(error, Exception) else "interrupted",
                    totals=report.outcome_totals(error.outcome if isinstance(error, Interrupted) else None),
                    errors=entries,
                    remotes=[],
                )
            )

    def close(self) -> None:
        with self._lock:
            self._ended = True
            for sink in self._sinks:
                sink.close()

    def _free_worker(self, step: Step) -> str:
        """Free the lane of a step that has ended. Return the lane's name; empty for a step that never started."""
        lane = self._lanes_by_step.pop(step.id, None)
        if lane is None:
            return ""
        self._lanes.remove(lane)
        return self._lanes.name_of(lane)

    def _write(self, event: events.Event) -> None:
        if self._ended:
            return
        self._ended = isinstance(event, events.BuildFinished)
        for sink in self._sinks:
            sink.write(event)

    def _now_s(self) -> float:
        return round(time.perf_counter() - self._start_s, 4)


def _is_same(before: Step | None, now: Step) -> bool:
    """Whether a step is planned as in the last event about it."""
    return before is now or (
        before is not None
        and (before.verdict, before.key, before.reason, before.producers, before.source)
        == (now.verdict, now.key, now.reason, now.producers, now.source)
    )


def _planned_step(step: Step) -> events.PlannedStep:
    record = step.record if step.verdict == "hit" else None
    _, _, partition = step.id.removesuffix(f"@{step.target}").partition(f"/{step.stage}/")
    return events.PlannedStep(
        id=step.id,
        stage=step.stage,
        partition=partition,
        target=step.target,
        verdict=step.verdict,
        reason=step.reason,
        key=step.key,
        producers=step.producers,
        source=step.source,
        builder=_text(record, "builder"),
        finished=_text(record, "finished"),
        saved_s=report.saved_s(step),
        output_bytes=_output_bytes(record),
    )


def _output_bytes(record: Record | None) -> int:
    return sum(output.size for output in record.outputs.values()) if record is not None else 0


def _text(record: Record | None, name: str) -> str | None:
    """The string `name` in the provenance of a record; None if it is missing."""
    value = record.provenance.get(name) if record is not None else None
    return value if isinstance(value, str) else None
