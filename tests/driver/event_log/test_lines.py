"""Events as JSON lines: they are read as they were written, and the newest builds are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver.reports.logs import a_log
from trtbuild.core.values.codec import encode, members
from trtbuild.driver.event_log.events import KINDS, BuildStarted, BuildWarning, ModelPlanned
from trtbuild.driver.event_log.kept import MOST_BUILDS, KeptEvents, kept_builds
from trtbuild.driver.event_log.lines import EventFile, line_of, read_events
from trtbuild.errors import UsageError

START = BuildStarted(started="2026-01-01T00:00:00Z", trtbuild="1", builder="u@h")
PLANNED = ModelPlanned(at_s=0.1, model="m", steps=[], removed=[])


def fail(message: str) -> None:
    raise AssertionError(message)


def test_every_kind_of_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = a_log()
    assert {type(event) for event in log} == set(KINDS.values()), "the log of the tests has every kind"
    file = EventFile(str(tmp_path / "events"), fail)
    for event in log:
        file.write(event)
    file.close()
    assert [line_of(event) for event in read_events(tmp_path / "events")] == [line_of(event) for event in log]


def test_each_event_is_in_the_file_before_the_next_one(tmp_path: Path) -> None:
    file = EventFile(str(tmp_path / "events"), fail)
    file.write(START)
    assert read_events(tmp_path / "events") == [START]
    file.close()


def test_an_incomplete_last_line_and_an_unknown_event_are_left_out(tmp_path: Path) -> None:
    lines = line_of(START) + b'{"event":"of_a_later_version"}\n' + line_of(PLANNED)[:-9]
    (tmp_path / "events").write_bytes(lines)
    assert read_events(tmp_path / "events") == [START]


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        EventFile(str(tmp_path / "missing" / "events"), fail)


def test_a_full_disk_is_reported_once_and_raises_nothing() -> None:
    reports: list[str] = []
    file = EventFile("/dev/full", reports.append)
    for _ in range(3):
        file.write(START)
    file.close()
    assert len(reports) == 1
    assert "No space left" in reports[0]


def test_the_newest_builds_are_kept(tmp_path: Path) -> None:
    for number in range(MOST_BUILDS + 3):
        kept = KeptEvents(tmp_path)
        kept.write(START)
        kept.write(PLANNED)
        kept.write(BuildWarning(at_s=1.0, text=str(number)))
        kept.close()
    builds = [read_events(path) for path in kept_builds(tmp_path)]
    assert len(builds) == MOST_BUILDS
    newest = builds[0][-1]
    assert isinstance(newest, BuildWarning)
    assert newest.text == str(MOST_BUILDS + 2)
    assert builds[0][:2] == [START, PLANNED], "events before the first plan are kept, too"


def test_a_command_without_a_plan_leaves_no_file(tmp_path: Path) -> None:
    kept = KeptEvents(tmp_path / "state")
    kept.write(START)
    kept.close()
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "builds").write_text("a file in place of the folder")
    kept = KeptEvents(tmp_path)
    for event in (START, PLANNED, PLANNED):
        kept.write(event)
    kept.close()
    assert kept_builds(tmp_path) == []


def test_the_fast_encoding_of_a_planned_step_is_that_of_its_fields() -> None:
    (step, *_) = next(event for event in a_log() if isinstance(event, ModelPlanned)).steps
    assert list(encode(step).items()) == list(members(step).items())
