"""The executor does what plans say, in an order that their steps allow, each key once."""

from __future__ import annotations

import threading
from dataclasses import replace

from trtbuild.core.graph import Reason, Stage, Step
from trtbuild.core.planning import ModelPlan
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Record
from trtbuild.core.shapes import ShapePlan
from trtbuild.core.spec import Input, Model, Origin, Source
from trtbuild.driver.executor import MENDS, Outcome, Watcher, execute
from trtbuild.driver.steps import Ran
from trtbuild.errors import EntryCorrupt, ToolchainError

NEW = Reason("new", "it was not built in this project before")


def recipe(name: str) -> Recipe:
    return Recipe("engine", 1, (("name", name),))


def a_step(model: str, stage: Stage, name: str, *after: str, key: str | None = None) -> Step:
    return Step(f"{model}/{stage}/{name}", model, stage, "run", NEW, recipe=recipe(key or name), after=after)


class FakeProject:
    """Plans over a set of finished keys; running a step finishes its key."""

    def __init__(self, *steps: Step) -> None:
        self.steps = steps
        self.done: dict[str, Record] = {}
        self.order: list[str] = []
        self.fails: set[str] = set()
        self.together = 0
        self._running = 0
        self._lock = threading.Lock()

    def plan(self, name: str) -> ModelPlan:
        model = Model(name, Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
        plan = ModelPlan(model, ShapePlan((), ()))
        for step in self.steps:
            if step.model == name:
                record = self.done.get(step.key or "")
                plan.steps[step.id] = step if record is None else replace(step, verdict="hit", record=record)
        return plan

    def run(self, step: Step, plan: ModelPlan) -> Ran:
        with self._lock:
            self._running += 1
            self.together = max(self.together, self._running)
            self.order.append(step.id)
        threading.Event().wait(0.01)
        with self._lock:
            self._running -= 1
        if step.id in self.fails:
            raise ToolchainError("refused")
        assert step.recipe is not None
        record = Record(step.recipe, {})
        self.done[step.recipe.key] = record
        return Ran(record, 0.01)

    def execute(self, *, jobs: int = 2, keep_going: bool = False) -> Outcome:
        plans = {name: self.plan(name) for name in dict.fromkeys(step.model for step in self.steps)}
        return execute(plans, self.plan, self.run, jobs=jobs, keep_going=keep_going, watcher=Watcher())


def test_a_step_runs_after_what_it_consumes() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"), a_step("m", "engine", "a", "m/trace/t"), a_step("m", "package", "p", "m/engine/a")
    )
    outcome = project.execute()
    assert outcome.ok
    assert project.order == ["m/trace/t", "m/engine/a", "m/package/p"]
    assert set(outcome.ran) == set(project.order)


def test_at_most_jobs_steps_run_together() -> None:
    project = FakeProject(*(a_step("m", "engine", f"e{k}") for k in range(8)))
    assert project.execute(jobs=3).ok
    assert project.together <= 3
    assert project.together > 1


def test_of_steps_with_one_key_one_runs_and_the_others_become_hits() -> None:
    project = FakeProject(
        a_step("m", "engine", "one", key="same"),
        a_step("m", "engine", "two", key="same"),
        a_step("n", "engine", "three", key="same"),
    )
    outcome = project.execute(jobs=4)
    assert outcome.ok
    assert len(project.order) == len(outcome.ran) == 1


def test_a_failure_skips_what_is_below_and_starts_nothing_new() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"),
        a_step("m", "engine", "a", "m/trace/t"),
        a_step("n", "engine", "b", "n/trace/u"),
        a_step("n", "trace", "u"),
    )
    project.fails = {"m/trace/t"}
    outcome = project.execute(jobs=1)
    assert not outcome.ok
    assert project.order == ["m/trace/t"]
    assert set(outcome.failed) == {"m/trace/t"}


def test_keep_going_builds_what_does_not_depend_on_the_failure() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"),
        a_step("m", "engine", "a", "m/trace/t"),
        a_step("n", "trace", "u"),
        a_step("n", "engine", "b", "n/trace/u"),
    )
    project.fails = {"m/trace/t"}
    outcome = project.execute(jobs=1, keep_going=True)
    assert not outcome.ok
    assert project.order == ["m/trace/t", "n/trace/u", "n/engine/b"]


def damaged(project: FakeProject, times: int) -> Outcome:
    """Runs `m/package/p` of a project, whose engine's blob turns out to be damaged that often."""
    whole = project.run
    left = [times]

    def run(step: Step, plan: ModelPlan) -> Ran:
        if step.stage == "package" and left[0]:
            left[0] -= 1
            project.done.clear()  # it is in quarantine now: the engine's step is no hit any more
            project.order.append("damage")
            raise EntryCorrupt("not what its name says")
        return whole(step, plan)

    plans = {"m": project.plan("m")}
    return execute(plans, project.plan, run, jobs=1, keep_going=False, watcher=Watcher())


def test_a_blob_that_turns_out_to_be_damaged_is_made_again_by_the_step_that_left_it() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    assert damaged(project, 1).ok
    assert project.order == ["m/engine/a", "damage", "m/engine/a", "m/package/p"]


def test_a_blob_that_is_damaged_again_and_again_is_an_error() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    outcome = damaged(project, MENDS + 1)
    assert set(outcome.failed) == {"m/package/p"}
