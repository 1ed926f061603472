"""The rows of a report depend only on the events of a log, which may end at any event."""

from __future__ import annotations

import pytest

from tests.driver.reports.logs import NEW, a_log, a_planned_step, finished, started
from trtbuild.driver.event_log import events
from trtbuild.driver.reports.comparison import compare
from trtbuild.driver.reports.critical_path import with_waits
from trtbuild.driver.reports.replay import replay
from trtbuild.driver.reports.targets import target_rows


def test_the_rows_of_a_build_that_failed() -> None:
    build = replay(a_log())
    assert {id: row.verdict for id, row in build.steps.items()} == {
        "m/trace": "hit",
        "m/partition": "run",
        "m/convert/p0": "run",  # the partition step has converted p0
        "m/engine/p0@ada": "run",
        "m/engine/p0@ampere": "failed",
        "m/package": "skipped",
    }
    assert build.steps["m/convert/p0"].duration_s == 0.7
    assert build.steps["m/engine/p0@ada"].reason.changed[0].part == "onnx"
    assert build.steps["m/engine/p0@ampere"].error is not None
    assert build.steps["m/engine/p0@ampere"].duration_s == pytest.approx(2.0)
    assert build.totals == {"hit": 1, "run": 3, "failed": 1, "skipped": 1}
    assert (build.status, build.jobs, build.last_s) == ("failed", 2, 5.5)


@pytest.mark.parametrize("length", range(len(a_log())))
def test_a_log_may_end_at_any_event(length: int) -> None:
    build = replay(a_log()[:length])
    assert build.status == "running"
    with_waits(build.steps, build.producers, build.last_s)


def test_a_step_that_runs_at_the_end_of_the_log_is_running() -> None:
    log = a_log()
    engine_start = next(event for event in log if isinstance(event, events.StepStarted) and event.id.endswith("@ada"))
    build = replay(log[: log.index(engine_start) + 1])
    assert build.steps["m/engine/p0@ada"].verdict == "running"
    assert target_rows(build.steps.values())[0].verdict == "running"


def test_the_critical_path_leads_from_the_last_step_to_the_first() -> None:
    build = replay(a_log())
    steps, seconds = with_waits(build.steps, build.producers, build.last_s)
    assert [id for id, row in steps.items() if row.critical] == ["m/partition", "m/engine/p0@ada"]
    # the convert step never started, because the partition step had already converted p0
    assert steps["m/engine/p0@ada"].waited_for == "m/partition"
    assert seconds == pytest.approx(5.0)


def test_a_step_that_starts_before_its_producer_has_ended() -> None:
    steps = [a_planned_step("trace", "run"), a_planned_step("lower", "unknown", "m/trace")]
    announced = [a_planned_step("trace", "hit"), a_planned_step("lower", "run", "m/trace")]
    build = replay(
        [
            events.ModelPlanned(at_s=0.0, model="m", steps=steps, removed=[]),
            started(0.0, "m/trace"),
            events.ModelPlanned(at_s=4.0, model="m", steps=announced, removed=[]),
            started(4.0, "m/lower", "worker 2"),
            finished(6.0, "m/trace", 6.0),
            finished(7.0, "m/lower", 3.0, "worker 2"),
        ]
    )
    assert [(row.verdict, row.start_s, row.end_s) for row in build.steps.values()] == [("run", 0, 6), ("run", 4, 7)]
    rows, path_s = with_waits(build.steps, build.producers, build.last_s)
    assert [row.critical for row in rows.values()] == [True, True]
    assert path_s == 7.0, "the time in which both ran counts twice"


def test_a_step_that_waited_for_another_build_keeps_its_times() -> None:
    engine, planned_hit = a_planned_step("engine", "run"), a_planned_step("engine", "hit")
    build = replay(
        [
            events.ModelPlanned(at_s=0.0, model="m", steps=[engine], removed=[]),
            started(1.0, "m/engine", "worker 2"),
            finished(5.0, "m/engine", 4.0, "worker 2", verdict="hit", source="local"),
            events.ModelPlanned(at_s=6.0, model="m", steps=[planned_hit], removed=[]),
        ]
    )
    row = build.steps["m/engine"]
    assert (row.verdict, row.start_s, row.end_s, row.duration_s, row.worker) == ("hit", 1.0, 5.0, 4.0, "worker 2")
    assert (row.reason, row.finished) == (planned_hit.reason, planned_hit.finished), "the row differs from the new plan"
    assert with_waits(build.steps, build.producers, build.last_s)[1] == pytest.approx(4.0)


def test_the_worker_of_a_scheduler_is_in_the_row_of_its_step() -> None:
    log = [
        events.ModelPlanned(at_s=0.0, model="m", steps=[a_planned_step("engine", "run")], removed=[]),
        started(0.0, "m/engine"),
        finished(1.0, "m/engine", 1.0, farm_worker="gpu-host-2"),
    ]
    assert replay(log).steps["m/engine"].farm_worker == "gpu-host-2"


def test_a_step_waits_for_a_free_worker_after_its_producers() -> None:
    convert = a_planned_step("convert", "run", partition="p0")
    first, second = (
        a_planned_step("engine", "run", convert.id, partition="p0", target=target) for target in ("a", "b")
    )
    build = replay(
        [
            events.ModelPlanned(at_s=0.0, model="m", steps=[convert, first, second]),
            started(0.0, convert.id),
            finished(1.0, convert.id, 1.0),
            started(1.0, first.id),
            finished(4.0, first.id, 3.0),
            started(4.0, second.id),
            finished(5.0, second.id, 1.0),
        ]
    )
    steps, seconds = with_waits(build.steps, build.producers, build.last_s)
    assert steps[first.id].waited_for == convert.id
    assert (steps[second.id].waited_for, steps[second.id].waited_s) == (first.id, 3.0)
    assert seconds == pytest.approx(5.0)


def test_a_wait_for_memory_counts_as_a_wait_for_the_last_producer() -> None:
    """The engine's worker was idle from second 1 on, and the producer ended at second 2. So the step waited for memory from
    2 to 5. Its row names the producer."""
    short, convert = a_planned_step("trace", "run"), a_planned_step("convert", "run")
    engine = a_planned_step("engine", "run", convert.id)
    build = replay(
        [
            events.ModelPlanned(at_s=0.0, model="m", steps=[short, convert, engine], removed=[]),
            started(0.0, convert.id, "worker 2"),
            started(0.0, short.id),
            finished(1.0, short.id, 1.0),
            finished(2.0, convert.id, 2.0, "worker 2"),
            started(5.0, engine.id),
            finished(6.0, engine.id, 1.0),
        ]
    )
    steps, _ = with_waits(build.steps, build.producers, build.last_s)
    assert (steps[engine.id].waited_for, steps[engine.id].waited_s) == (convert.id, 3.0)


def test_a_row_sums_the_engines_of_a_model_and_a_target() -> None:
    ada, ampere = target_rows(replay(a_log()).steps.values())
    assert (ada.model, ada.target, ada.verdict, ada.engines, ada.runs) == ("m", "ada", "run", 1, 1)
    assert (ada.output_bytes, ada.duration_s, ada.sources, ada.builders) == (5000, 3.0, ["built"], ["u@h"])
    assert (ampere.verdict, ampere.runs) == ("failed", 0)


def test_the_steps_that_differ_from_the_build_before() -> None:
    before = replay([*a_log()[:5], events.BuildFinished(at_s=1.0, status="done", totals={}, errors=[], remotes=[])])
    comparison = compare(before, replay(a_log()))
    assert comparison.unchanged == 1  # the trace
    assert comparison.status == "done"
    by_id = {step.id: step for step in comparison.steps}
    assert "m/trace" not in by_id
    assert (by_id["m/partition"].verdict_before, by_id["m/partition"].verdict_now) == ("skipped", "run")
    assert by_id["m/partition"].change == "same"
    assert comparison.steps[-1].id == "m/partition", "a step with another key is at the end"
    assert (by_id["m/engine/p0@ada"].verdict_before, by_id["m/engine/p0@ada"].change) == (None, "new")
    reverse = {step.id: step for step in compare(replay(a_log()), before).steps}
    assert (reverse["m/engine/p0@ada"].verdict_now, reverse["m/engine/p0@ada"].change) == (None, "removed")
    assert {step.change for step in compare(replay(a_log("n")), replay(a_log())).steps} == {"new", "removed"}


def test_a_step_that_could_not_be_planned_has_no_start() -> None:
    step = a_planned_step("engine", "run", partition="p0", target="ada")
    log = a_log()
    failed = next(event for event in log if isinstance(event, events.StepFailed))
    build = replay(
        [
            events.ModelPlanned(at_s=0.0, model="m", steps=[step]),
            events.StepFailed(at_s=1.0, id=step.id, worker="", error=failed.error),
        ]
    )
    row = build.steps[step.id]
    assert (row.verdict, row.start_s, row.duration_s, row.reason) == ("failed", None, 0.0, NEW)
