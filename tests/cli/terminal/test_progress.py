"""Progress in plain lines, and the count of finished and remaining steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.fake_steps import a_plan, a_result, a_step
from trtbuild.cli.terminal.progress import MOST_ID_WIDTH, Progress, Tally, crop
from trtbuild.core.model.spec import PartitionSettings, Target
from trtbuild.errors import ToolchainError


def test_the_total_grows_when_a_model_is_partitioned_and_has_no_hits() -> None:
    tally = Tally()
    tally.planned(a_plan("m", trace="run", lower="unknown", partition="unknown", package="unknown"))
    tally.planned(a_plan("n", trace="hit", lower="hit", partition="hit", engine="run", package="unknown"))
    assert tally.line(1.0) == "0/6+ run · 3 hit · 1.0 s"
    tally.finished(a_step("m", "trace"), a_result())
    tally.planned(a_plan("m", trace="hit", lower="run", partition="unknown", package="unknown"))
    assert tally.line(2.0) == "1/6+ run · 3 hit · 2.0 s"
    tally.finished(a_step("m", "lower"), a_result())
    tally.finished(a_step("m", "partition"), a_result(conversions=1))
    tally.planned(a_plan("m", trace="hit", lower="hit", partition="hit", engine="run", package="unknown"))
    assert tally.line(3.0) == "4/8 run · 3 hit · 3.0 s"
    assert not tally.may_grow


def test_the_column_of_ids_has_room_for_engines_of_partitions_that_are_not_known_yet() -> None:
    plan = a_plan("encoder", trace="run", engine="unknown")
    model = replace(plan.model, targets=(Target("blackwell", 120),), partition=PartitionSettings(("layers.*",)))
    tally = Tally()
    tally.planned(replace(plan, model=model))
    assert tally.id_width == len("encoder/engine/layers.0@blackwell")
    tally.planned(replace(plan, model=replace(model, name="x" * MOST_ID_WIDTH)))
    assert tally.id_width == len("encoder/engine/layers.0@blackwell")


def test_each_event_of_a_step_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    step = a_step("m", "trace")
    progress.step_started(step)
    progress.step_finished(step, a_result())
    progress.step_started(step)
    progress.step_finished(step, a_result(source="local"))
    progress.step_started(step)
    progress.step_finished(step, a_result(conversions=2))
    progress.step_started(step)
    progress.step_failed(step, ToolchainError("it fails\nin detail"))
    progress.close()
    assert capfd.readouterr().err.splitlines() == [
        "run            m/trace                   new",
        "done    0.0 s  m/trace",
        "run            m/trace                   new",
        "got     0.0 s  m/trace",
        "run            m/trace                   new",
        "done    0.0 s  m/trace                   with 2 conversions",
        "run            m/trace                   new",
        "FAIL    0.0 s  m/trace                   it fails",
    ]


def test_work_has_a_line_for_its_start_and_its_end_but_a_phase_has_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with progress.work("verify net"):
        pass
    with progress.work("verify angle") as work:
        work.failed = True
    with pytest.raises(KeyError), progress.work("verify zeros"):
        raise KeyError
    with progress.phase("plan"):
        pass
    progress.close()
    assert [line.split() for line in capfd.readouterr().err.splitlines()] == [
        ["run", "verify", "net"],
        ["done", "0.0", "s", "verify", "net"],
        ["run", "verify", "angle"],
        ["FAIL", "0.0", "s", "verify", "angle"],
        ["run", "verify", "zeros"],
        ["FAIL", "0.0", "s", "verify", "zeros"],
    ]


def test_a_text_that_is_too_long_is_cropped() -> None:
    assert crop("abc", 3) == "abc"
    assert crop("abcd", 3) == "ab…"
    assert crop("abcd", 0) == ""
