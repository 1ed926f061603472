"""The steps that a failed build has not begun: `Outcome.not_begun`."""

from __future__ import annotations

from typing import Any, cast

from tests.driver.building.execution.test_executor import NEW, FakeProject, a_step
from trtbuild.driver.project.outcome import Outcome
from trtbuild.errors import SourceError


def an_outcome(*steps: Any, failed: str = "", **more: Any) -> Outcome:
    """The outcome of a build of these steps. `failed` is the id of the step that has failed, if any."""
    project = FakeProject(*steps)
    plans = {name: project.plan(name) for name in dict.fromkeys(step.model for step in steps)}
    error = {failed: (NEW, SourceError("it fails", code="eager"))} if failed else {}
    return Outcome(plans, failed=error, **more)


FIRST = a_step("a", "trace", "x")
LOWER = a_step("a", "lower", "y", FIRST.id)
OTHER = a_step("b", "trace", "z")


def test_a_step_that_does_not_depend_on_a_failure_counts_as_not_begun() -> None:
    assert an_outcome(FIRST, LOWER, OTHER, failed=FIRST.id).not_begun == 1


def test_dependents_of_a_failed_step_and_finished_steps_and_unselected_stages_do_not_count() -> None:
    assert an_outcome(FIRST, LOWER, failed=FIRST.id).not_begun == 0
    assert an_outcome(FIRST, OTHER, failed=FIRST.id, ran={OTHER.id: (NEW, cast("Any", None))}).not_begun == 0
    lower = a_step("b", "lower", "z")
    assert an_outcome(FIRST, lower, failed=FIRST.id, stages=frozenset(("trace",))).not_begun == 0
    assert an_outcome(FIRST, OTHER).not_begun == 0  # an interrupted build has no failure
