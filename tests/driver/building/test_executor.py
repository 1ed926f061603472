"""The executor does what plans say, in an order that their steps allow, each key once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import Reason, Stage, Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.events import Watcher
from trtbuild.driver.building.executor import MAX_RETRIES, Callbacks, ResourceLimit, execute
from trtbuild.driver.building.memory import MemoryLimit
from trtbuild.driver.project.outcome import Outcome, Ran, Written
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError, ToolchainError

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

    def write(self, plan: ModelPlan) -> list[Written]:
        name = plan.model.name
        self.order.append(f"{name}/outputs")
        return [Written(name, "package", f"dist/{name}", True)]

    def execute(
        self,
        *,
        jobs: int = 2,
        keep_going: bool = False,
        run: Callable[[Step, ModelPlan], Ran] | None = None,
        write: Callable[[ModelPlan], list[Written]] | None = None,
        limit: ResourceLimit | None = None,
        rebuild_lost: bool = True,
    ) -> Outcome:
        outcome = Outcome({name: self.plan(name) for name in dict.fromkeys(step.model for step in self.steps)})
        callbacks = Callbacks(self.plan, run or self.run, write or self.write)
        execute(
            outcome,
            callbacks,
            jobs=jobs,
            keep_going=keep_going,
            watcher=Watcher(),
            limit=limit,
            rebuild_lost=rebuild_lost,
        )
        return outcome

    @property
    def ran(self) -> list[str]:
        return [name for name in self.order if not name.endswith("/outputs")]


def test_a_step_runs_after_what_it_consumes() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"), a_step("m", "engine", "a", "m/trace/t"), a_step("m", "package", "p", "m/engine/a")
    )
    outcome = project.execute()
    assert outcome.ok
    assert project.ran == ["m/trace/t", "m/engine/a", "m/package/p"]
    assert set(outcome.ran) == set(project.ran)


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
    assert len(project.ran) == len(outcome.ran) == 1


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
    assert project.ran == ["m/trace/t"]
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
    assert project.ran == ["m/trace/t", "n/trace/u", "n/engine/b"]


def damaged(project: FakeProject, times: int) -> Outcome:
    """Runs `m/package/p` of a project, whose engine's blob turns out to be damaged that often."""
    whole = project.run
    left = [times]

    def run(step: Step, plan: ModelPlan) -> Ran:
        if step.stage == "package" and left[0]:
            left[0] -= 1
            project.done.clear()  # it is in quarantine now: the engine's step is a miss
            project.order.append("damage")
            raise EntryCorrupt("not what its name says")
        return whole(step, plan)

    return project.execute(jobs=1, run=run)


def test_a_blob_that_turns_out_to_be_damaged_is_made_again_by_the_step_that_left_it() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    outcome = damaged(project, 1)
    assert outcome.ok
    assert project.ran == ["m/engine/a", "damage", "m/engine/a", "m/package/p"]
    assert outcome.retries == {"m/package/p": 1}


def test_a_blob_that_is_damaged_again_and_again_is_an_error() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    outcome = damaged(project, MAX_RETRIES + 1)
    assert set(outcome.failed) == {"m/package/p"}


def chain(model: str, *, key: str = "") -> list[Step]:
    return [
        a_step(model, "trace", "t", key=f"{model}-t"),
        a_step(model, "engine", "e", f"{model}/trace/t", key=key or f"{model}-e"),
        a_step(model, "package", "p", f"{model}/engine/e", key=f"{model}-p"),
    ]


def test_outputs_are_written_as_soon_as_their_model_is_done() -> None:
    project = FakeProject(*chain("m"), *chain("n"))
    done = threading.Event()

    def run(step: Step, plan: ModelPlan) -> Ran:
        if step.model == "n" and step.stage == "engine":
            assert done.wait(30), "m's outputs are written while n is built"
        return project.run(step, plan)

    def write(plan: ModelPlan) -> list[Written]:
        done.set()
        return project.write(plan)

    outcome = project.execute(run=run, write=write)
    assert outcome.ok
    assert list(outcome.written) == ["m", "n"]


def test_outputs_of_models_that_were_done_before_are_written_too_after_a_failure_elsewhere() -> None:
    project = FakeProject(*chain("m"), *chain("n"))
    for step in chain("m"):
        assert step.recipe is not None
        project.done[step.recipe.key] = Record(step.recipe, {})
    project.fails = {"n/trace/t"}
    outcome = project.execute(jobs=1)
    assert set(outcome.written) == {"m"}
    assert set(outcome.failed) == {"n/trace/t"}


def test_outputs_whose_blobs_cannot_be_read_are_written_after_the_step_that_left_them_ran_again() -> None:
    project = FakeProject(*chain("m"))
    left = [2]

    def write(plan: ModelPlan) -> list[Written]:
        if left[0]:
            left[0] -= 1
            (engine,) = [step for step in project.steps if step.stage == "engine"]
            del project.done[engine.key or ""]  # in quarantine
            raise EntryCorrupt("not what its name says")
        return project.write(plan)

    outcome = project.execute(write=write)
    assert outcome.ok
    assert project.ran.count("m/engine/e") == 3
    assert set(outcome.written) == {"m"}


@pytest.mark.parametrize("rebuild_lost", [True, False])
def test_outputs_that_cannot_be_read_again_and_again_are_an_error(rebuild_lost: bool) -> None:
    project = FakeProject(*chain("m"))
    asked = []

    def write(plan: ModelPlan) -> list[Written]:
        asked.append(plan.model.name)
        raise BlobMissing("gone")

    outcome = project.execute(write=write, rebuild_lost=rebuild_lost)
    assert not outcome.ok
    assert isinstance(outcome.unwritten["m"], BlobMissing)
    assert len(asked) == (MAX_RETRIES + 1 if rebuild_lost else 1)


def test_a_step_whose_result_is_gone_each_time_is_an_error_and_no_endless_loop() -> None:
    project = FakeProject(*chain("m"))

    def run(step: Step, plan: ModelPlan) -> Ran:
        ran = project.run(step, plan)
        if step.stage == "engine":
            project.done.clear()
        return ran

    outcome = project.execute(run=run)
    assert not outcome.ok
    (error,) = [error for _, error in outcome.failed.values()]
    assert "missing or damaged each time" in error.text


def test_a_model_that_cannot_be_planned_again_fails_alone() -> None:
    project = FakeProject(*chain("m"), *chain("n"))
    plain = project.plan

    def plan(name: str) -> ModelPlan:
        if name == "m":
            raise SourceError("its weights file is gone")
        return plain(name)

    outcome = Outcome({name: plain(name) for name in ("m", "n")})
    execute(outcome, Callbacks(plan, project.run, project.write), jobs=2, keep_going=True, watcher=Watcher())
    assert set(outcome.failed) == {"m/engine/e"}
    assert set(outcome.written) == {"n"}


def test_a_step_waits_until_its_memory_is_there_and_one_always_runs() -> None:
    project = FakeProject(*(a_step("m", "engine", f"e{k}") for k in range(6)))
    assert project.execute(jobs=4, limit=MemoryLimit(lambda step: 10, lambda: 9)).ok
    assert project.together == 1
    assert project.execute(jobs=4).ok


def test_a_failure_of_one_key_is_a_failure_for_all_models_that_have_it() -> None:
    project = FakeProject(*chain("m", key="same"), *chain("n", key="same"))
    project.fails = {"m/engine/e", "n/engine/e"}
    outcome = project.execute(jobs=1, keep_going=True)
    assert len([name for name in project.ran if "engine" in name]) == 1
    assert len(outcome.failed) == 1


def test_engines_of_one_model_do_not_make_it_plan_again_each() -> None:
    engines = [a_step("m", "engine", f"e{k}", "m/trace/t") for k in range(50)]
    package = a_step("m", "package", "p", *(step.id for step in engines))
    project = FakeProject(a_step("m", "trace", "t"), *engines, package)
    planned = []

    def plan(name: str) -> ModelPlan:
        planned.append(name)
        return project.plan(name)

    outcome = Outcome({"m": project.plan("m")})
    execute(outcome, Callbacks(plan, project.run, project.write), jobs=2, watcher=Watcher())
    assert outcome.ok
    assert len(outcome.ran) == 52
    assert len(planned) == 3, "after the trace, after the last engine, after the package"


def test_an_interrupted_build_ends_what_runs_and_does_not_wait_for_a_thread_that_cannot_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trtbuild.driver.building.executor.SHUTDOWN_TIMEOUT_S", 0.1)
    project = FakeProject(*chain("m"), *chain("n"))
    stuck, aborted = threading.Event(), []

    def run(step: Step, plan: ModelPlan) -> Ran:
        if step.model == "m":
            stuck.wait(60)
        raise KeyboardInterrupt  # as if the signal had come now

    outcome = Outcome({name: project.plan(name) for name in ("m", "n")})
    with pytest.raises(KeyboardInterrupt):
        execute(outcome, Callbacks(project.plan, run, abort=lambda: aborted.append(True)), jobs=2, watcher=Watcher())
    assert aborted == [True]
    stuck.set()
