"""The history of builds in a file of bounded size: hits and misses by day, and the reasons of all misses."""

from __future__ import annotations

import os
from pathlib import Path

from trtbuild.cli.screens.caches import stats_lines
from trtbuild.core.planning.graph import Reason, Verdict
from trtbuild.driver.answers.documents import Build, StepEntry
from trtbuild.driver.answers.report import totals
from trtbuild.driver.cache import build_history, housekeeping
from trtbuild.driver.cache.build_history import NotedBuild, note_build, read_builds, summarize
from trtbuild.driver.project.workspace import Request

DAY_S = 86400.0


def a_step(verdict: Verdict, reason: Reason, *, saved_s: float = 0.0, duration_s: float = 0.0) -> StepEntry:
    return StepEntry(
        id="m/engine",
        model="m",
        stage="engine",
        target=None,
        key=None,
        verdict=verdict,
        source=None,
        reason=reason,
        duration_s=duration_s,
        saved_s=saved_s,
        outputs={},
    )


def a_build() -> Build:
    recorded, changed = Reason("recorded", ""), Reason("changed", "")
    steps = [
        a_step("hit", recorded, saved_s=60.0),
        a_step("hit", recorded, saved_s=30.0),
        a_step("run", changed, duration_s=5.0),
        a_step("failed", Reason("new", "")),
        a_step("skipped", changed),
    ]
    return Build(
        ok=False,
        duration_s=5.0,
        totals=totals(steps),
        steps=steps,
        outputs=[],
        not_begun=0,
        errors=[],
        warnings=[],
        remotes=[],
    )


def test_a_build_adds_its_hits_and_the_reasons_of_its_misses(tmp_path: Path) -> None:
    note_build(tmp_path, a_build())
    (noted,) = read_builds(tmp_path)
    assert (noted.hits, noted.misses, noted.saved_s, noted.built_s) == (2, 2, 90.0, 5.0)
    assert noted.reasons == {"changed": 1, "new": 1}
    assert noted.ok is False


def test_the_summary_has_the_days_and_the_sum() -> None:
    builds = [
        NotedBuild(finished_s=day * DAY_S, ok=True, hits=hits, misses=1, saved_s=10.0, built_s=1.0, reasons={"new": 1})
        for day, hits in ((20000, 1), (20000, 0), (20001, 9))
    ]
    history = summarize(builds)
    assert history is not None
    assert (history.builds, history.hits, history.misses, history.saved_s) == (3, 10, 3, 30.0)
    assert [(day.day, day.builds, day.hit_rate) for day in history.days] == [
        ("2024-10-04", 2, 0.3333),
        ("2024-10-05", 1, 0.9),
    ]
    assert history.since == "2024-10-04"
    assert history.reasons == {"new": 3}


def test_without_builds_there_is_no_history(tmp_path: Path) -> None:
    assert summarize(read_builds(tmp_path)) is None


def test_the_file_stays_small_and_keeps_the_newest_builds(tmp_path: Path) -> None:
    path = tmp_path / ".trtbuild" / build_history.FILE
    path.parent.mkdir()
    line = b'{"finished_s":%d,"ok":true,"hits":1,"misses":0,"saved_s":0,"built_s":0,"reasons":{}}\n'
    line_count = build_history.MOST_BUILDS + build_history.SLACK
    path.write_bytes(b"".join(line % number for number in range(line_count)))
    note_build(tmp_path, a_build())
    builds = read_builds(tmp_path)
    assert len(builds) == build_history.MOST_BUILDS
    assert builds[-1].misses == 2, "the newest build is the last"
    assert builds[0].finished_s == line_count + 1 - build_history.MOST_BUILDS


def test_only_the_damaged_line_is_ignored(tmp_path: Path) -> None:
    note_build(tmp_path, a_build())
    path = tmp_path / ".trtbuild" / build_history.FILE
    path.write_bytes(path.read_bytes() + b'{"finished_s":1,"ok"')  # cut off by a full disk
    note_build(tmp_path, a_build())
    assert len(read_builds(tmp_path)) == 2


def test_only_lines_with_an_impossible_time_are_ignored(tmp_path: Path) -> None:
    note_build(tmp_path, a_build())
    path = tmp_path / ".trtbuild" / build_history.FILE
    line = b'{"finished_s":%s,"ok":true,"hits":1,"misses":0,"saved_s":0,"built_s":0,"reasons":{}}\n'
    # the last of these times is in the year 10000
    path.write_bytes(
        path.read_bytes() + b"".join(line % time for time in (b"1e300", b"NaN", b"-Infinity", b"253402300800"))
    )
    builds = read_builds(tmp_path)
    assert len(builds) == 1
    assert summarize(builds) is not None


def test_simultaneous_builds_lose_no_line(tmp_path: Path) -> None:
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(25):
                    note_build(tmp_path, a_build())
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert len(read_builds(tmp_path)) == 100


def test_a_state_directory_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".trtbuild").write_text("a file in place of the folder")
    note_build(tmp_path, a_build())
    assert read_builds(tmp_path) == []


def test_the_statistics_show_the_history_as_text(tmp_path: Path) -> None:
    note_build(tmp_path, a_build())
    lines = stats_lines(housekeeping.stats(Request(project=tmp_path)))
    assert any(
        "1 build since" in line and "50% of 4 steps were hits, 90.0 s saved, 5.0 s built" in line for line in lines
    )
    assert lines[-1].endswith("changed 1, new 1")
