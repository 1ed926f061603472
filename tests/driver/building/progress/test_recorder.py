"""The recorder turns the calls of a build into events."""

from __future__ import annotations

import pytest

from tests.cli.fake_steps import a_plan, a_result, a_step
from trtbuild.core.planning.graph import STAGES
from trtbuild.driver.building.progress.recorder import Recorder
from trtbuild.driver.event_log import events
from trtbuild.driver.event_log.events import Event
from trtbuild.driver.project.outcome import Interrupted, Outcome
from trtbuild.errors import ManifestErrors, Problem, ToolchainError


class FakeSink:
    """Keeps the events that it receives."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_closed = False

    def write(self, event: Event) -> None:
        assert not self.is_closed
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


def test_steps_that_run_together_have_separate_workers_and_workers_are_reused() -> None:
    sink = FakeSink()
    with Recorder([sink]) as recorder:
        steps = [a_step(name, "engine") for name in ("a", "b", "c")]
        recorder.step_started(steps[0])
        recorder.step_started(steps[1])
        recorder.step_finished(steps[0], a_result())
        recorder.step_started(steps[2])
        recorder.step_failed(steps[1], ToolchainError("no kernel"))
    workers = {event.id: event.worker for event in sink.events if isinstance(event, events.StepStarted)}
    assert workers == {"a/engine": "worker 1", "b/engine": "worker 2", "c/engine": "worker 1"}
    (failed,) = [event for event in sink.events if isinstance(event, events.StepFailed)]
    assert (failed.worker, failed.error.text) == ("worker 2", "no kernel")
    assert sink.is_closed


def test_a_step_that_starts_again_frees_its_worker_and_a_step_that_never_started_frees_no_worker() -> None:
    sink = FakeSink()
    recorder = Recorder([sink])
    first, second = a_step("a", "engine"), a_step("b", "engine")
    recorder.step_started(first)
    recorder.step_failed(second, ToolchainError("it could not be planned"))
    recorder.step_started(first)
    recorder.step_started(second)
    assert [event.worker for event in sink.events if isinstance(event, events.StepStarted)] == [
        "worker 1",
        "worker 1",
        "worker 2",
    ]


def test_a_new_plan_lists_only_the_steps_that_differ() -> None:
    sink = FakeSink()
    recorder = Recorder([sink])
    recorder.model_planned(a_plan("m", trace="run", lower="unknown"))
    recorder.model_planned(a_plan("m", trace="hit", lower="unknown", partition="run"))
    recorder.model_planned(a_plan("m", trace="hit", partition="run"))
    planned = [event for event in sink.events if isinstance(event, events.ModelPlanned)]
    assert [[step.id for step in event.steps] for event in planned] == [
        ["m/trace", "m/lower"],
        ["m/trace", "m/partition"],
        [],
    ]
    assert [event.removed for event in planned] == [[], [], ["m/lower"]]


def test_the_totals_of_an_interrupted_build_count_its_steps_until_then() -> None:
    plan = a_plan("m", trace="hit", lower="hit", partition="hit", convert="run", engine="unknown")
    outcome = Outcome({"m": plan})
    outcome.ran["m/trace"] = plan.steps["m/trace"].reason, a_result()
    outcome.unpublished_keys = frozenset({str(plan.steps["m/partition"].key)})  # its check has not ended
    sink = FakeSink()
    with pytest.raises(Interrupted), Recorder([sink]):
        raise Interrupted(outcome)
    last = sink.events[-1]
    assert isinstance(last, events.BuildFinished)
    verdicts = {stage: [verdict for verdict, number in last.totals[stage].items() if number] for stage in STAGES}
    assert verdicts == {
        "calibrate": [],
        "trace": ["run"],
        "lower": ["hit"],
        "partition": ["skipped"],
        "convert": ["skipped"],
        "engine": ["skipped"],
        "package": [],
    }


@pytest.mark.parametrize(
    ("error", "status", "count"),
    [
        (KeyboardInterrupt(), "interrupted", 0),
        (ToolchainError("x"), "error", 1),
        (ManifestErrors([Problem("m.yaml", 1, 1, "a"), Problem("m.yaml", 2, 1, "b")]), "error", 2),
        (ValueError("a bug"), "error", 0),
    ],
)
def test_the_last_event_has_the_status_and_the_errors_of_the_exception(
    error: BaseException, status: str, count: int
) -> None:
    sink = FakeSink()
    recorder = Recorder([sink])
    with pytest.raises(type(error)), recorder, recorder.phase("plan"):
        raise error
    (phase,) = [event for event in sink.events if isinstance(event, events.PhaseFinished)]
    assert not phase.succeeded
    last = sink.events[-1]
    assert isinstance(last, events.BuildFinished)
    recorder.step_started(a_step("a", "engine"))  # a thread that still runs may do this
    assert sink.events[-1] is last
    assert (last.status, len(last.errors)) == (status, count)
    assert sink.is_closed
