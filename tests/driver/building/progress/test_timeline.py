"""`--trace` writes Chrome's trace events, also if the build fails. Events in a lane do not overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trtbuild.core.planning.graph import Reason, Stage, Step
from trtbuild.core.recipes.recipe import Change, Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.progress.timeline import BUILD_PROCESS, WORKER_PROCESS, Timeline
from trtbuild.driver.project.outcome import StepRun
from trtbuild.errors import ToolchainError, UsageError


def fail(message: str) -> None:
    raise AssertionError(message)


def a_step(name: str, stage: Stage = "engine") -> Step:
    reason = Reason("changed", "changed: onnx", (Change("onnx", "a", "b"),))
    return Step(f"m/{stage}/{name}", "m", stage, "run", reason, "ada", Recipe(stage, 1, (("name", name),)))


def result_of(step: Step) -> StepRun:
    assert step.recipe is not None
    return StepRun(Record(step.recipe, {}, {"statistics": {"layers": 3}}), 0.1, peak_rss_bytes=2**20)


def checked_events(document: Any) -> dict[str, Any]:
    """Check that a viewer can show the document, and return its complete events (``X``) by name."""
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    names, lanes, events = set(), defaultdict(list), {}
    for event in document["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            names.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert isinstance(event["args"], dict)
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        events[event["name"]] = event
    for (process, lane), spans in lanes.items():
        assert ("thread_name", process, lane) in names
        assert ("process_name", process, 0) in names
        # 0.2 µs are allowed, because times and durations are rounded to 0.1 µs
        assert all(end <= start + 0.2 for (_, end), (start, _) in pairwise(spans)), "events of a lane overlap"
    return events


def test_steps_that_run_together_have_separate_lanes_and_lanes_are_reused(tmp_path: Path) -> None:
    first, second, third = a_step("one"), a_step("two"), a_step("three")
    with Timeline(tmp_path / "t.json", fail) as timeline:
        with timeline.phase("plan"):
            pass
        timeline.step_started(first)
        timeline.step_started(second)
        timeline.step_finished(first, result_of(first))
        timeline.step_started(third)
        timeline.step_failed(second, ToolchainError("refused"))
        timeline.step_finished(third, result_of(third))
    events = checked_events(json.loads((tmp_path / "t.json").read_text()))
    assert [events[step.id]["tid"] for step in (first, second, third)] == [0, 1, 0]
    assert events["plan"]["pid"] == BUILD_PROCESS
    assert events[first.id]["pid"] == WORKER_PROCESS
    assert events[first.id]["cat"] == "engine"
    arguments = events[first.id]["args"]
    assert arguments["verdict"] == "run"
    assert arguments["key"] == first.key
    assert arguments["reason"]["code"] == "changed"
    assert arguments["changed"] == [{"part": "onnx", "was": "a", "now": "b"}]
    assert arguments["peak_rss_bytes"] == 2**20
    assert arguments["statistics"] == {"layers": 3}
    assert events[second.id]["args"]["verdict"] == "failed"
    assert events[second.id]["args"]["text"] == "refused"


def test_a_step_that_starts_again_frees_its_lane_and_both_attempts_are_shown(tmp_path: Path) -> None:
    first, second = a_step("one"), a_step("two")
    with Timeline(tmp_path / "t.json", fail) as timeline:
        timeline.step_started(first)
        timeline.step_started(first)  # a retry, because a blob could not be read
        timeline.step_started(second)
        timeline.step_finished(first, result_of(first))
        timeline.step_finished(second, result_of(second))
    document = json.loads((tmp_path / "t.json").read_text())
    assert checked_events(document)[second.id]["tid"] == 1
    attempts = [event["args"]["verdict"] for event in document["traceEvents"] if event["name"] == first.id]
    assert attempts == ["repeated", "run"]


def test_a_step_that_fails_without_a_start_does_not_free_the_lane_of_another_step(tmp_path: Path) -> None:
    running, failed, later = a_step("one"), a_step("two"), a_step("three")
    with Timeline(tmp_path / "t.json", fail) as timeline:
        timeline.step_started(running)
        timeline.step_failed(failed, ToolchainError("its model could not be planned again"))
        timeline.step_started(later)
        timeline.step_finished(running, result_of(running))
        timeline.step_finished(later, result_of(later))
    events = checked_events(json.loads((tmp_path / "t.json").read_text()))
    assert [events[step.id]["tid"] for step in (running, failed, later)] == [0, 1, 1]


def test_the_timeline_has_the_steps_that_an_interrupt_ended(tmp_path: Path) -> None:
    step = a_step("one")
    with pytest.raises(KeyboardInterrupt), Timeline(tmp_path / "t.json", fail) as timeline:
        timeline.step_started(step)
        raise KeyboardInterrupt
    assert checked_events(json.loads((tmp_path / "t.json").read_text()))[step.id]["args"]["verdict"] == "interrupted"


def test_phases_that_overlap_do_not_share_a_lane(tmp_path: Path) -> None:
    with Timeline(tmp_path / "t.json", fail) as timeline, timeline.phase("write a"), timeline.phase("write b"):
        pass
    events = checked_events(json.loads((tmp_path / "t.json").read_text()))
    assert {event["tid"] for event in events.values()} == {0, 1}


def test_the_file_is_replaced_at_the_end_and_no_other_file_remains(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with Timeline(path, fail):
        assert path.read_text() == "old"
    checked_events(json.loads(path.read_text()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    with Timeline("/dev/null", fail):
        pass
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("path", [".", "nowhere/t.json"])
def test_rejects_an_impossible_path_before_any_work(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="--trace"):
        Timeline(tmp_path / path, fail)


def test_a_disk_that_is_full_at_the_end_does_not_fail_the_build() -> None:
    complaints: list[str] = []
    with Timeline("/dev/full", complaints.append):
        pass
    assert complaints == ["the timeline could not be written to /dev/full: No space left on device"]
