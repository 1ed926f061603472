"""The executor runs each step after its inputs exist, and only one of several steps with the same key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import Reason, Stage, Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.planning.resource_limit import ResourceLimit
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.execution.executor import MAX_RETRIES, Callbacks, execute
from trtbuild.driver.building.execution.memory import MemoryLimit
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project.outcome import Outcome, StepRun, WrittenOutput
from trtbuild.errors import BlobMissing, EntryCorrupt, SourceError, ToolchainError

NEW = Reason("new", "it was not built in this project before")


def recipe(name: str) -> Recipe:
    return Recipe("engine", 1, (("name", name),))


def a_step(model: str, stage: Stage, name: str, *after: str, key: str | None = None) -> Step:
    """A step that has to run after the steps with the ids `after`. Steps with the same `key` have the same recipe."""
    return Step(f"{model}/{stage}/{name}", model, stage, "run", NEW, recipe=recipe(key or name), producers=after)


class FakeProject:
    """A project without a store. `records` has the record of each finished step, by its key. `order` has the ids of the
    steps that ran, and "MODEL/outputs" for each model whose outputs were written."""

    def __init__(self, *steps: Step) -> None:
        self.steps = steps
        self.records: dict[str, Record] = {}
        self.order: list[str] = []
        self.failing_steps: set[str] = set()
        #: If it is set, an engine step ends only after another engine step has started beside it.
        self.meeting: threading.Barrier | None = None
        self.most_running = 0
        self._running = 0
        self._lock = threading.Lock()

    def plan(self, name: str) -> ModelPlan:
        model = Model(name, Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
        plan = ModelPlan(model, ShapePlan((), ()))
        for step in self.steps:
            if step.model == name:
                record = self.records.get(step.key or "")
                plan.steps[step.id] = step if record is None else replace(step, verdict="hit", record=record)
        return plan

    def run(self, step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        with self._lock:
            self._running += 1
            self.most_running = max(self.most_running, self._running)
            self.order.append(step.id)
        if self.meeting is not None and step.stage == "engine":
            self.meeting.wait(30)
        threading.Event().wait(0.01)  # long enough that a step beside it starts, if it may
        with self._lock:
            self._running -= 1
        if step.id in self.failing_steps:
            raise ToolchainError("refused")
        assert step.recipe is not None
        record = Record(step.recipe, {})
        self.records[step.recipe.key] = record
        return StepRun(record, 0.01)

    def write(self, plan: ModelPlan) -> list[WrittenOutput]:
        name = plan.model.name
        self.order.append(f"{name}/outputs")
        return [WrittenOutput(name, "package", f"dist/{name}", True)]

    def execute(
        self,
        *,
        jobs: int = 2,
        keep_going: bool = False,
        run: Callable[..., StepRun] | None = None,
        write: Callable[[ModelPlan], list[WrittenOutput]] | None = None,
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


def test_a_step_runs_after_its_inputs_exist() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"), a_step("m", "engine", "a", "m/trace/t"), a_step("m", "package", "p", "m/engine/a")
    )
    outcome = project.execute()
    assert outcome.ok
    assert project.ran == ["m/trace/t", "m/engine/a", "m/package/p"]
    assert set(outcome.ran) == set(project.ran)


def test_the_number_of_jobs_limits_how_many_steps_run_together() -> None:
    project = FakeProject(*(a_step("m", "engine", f"e{k}") for k in range(9)))
    project.meeting = threading.Barrier(3)
    assert project.execute(jobs=3).ok
    assert project.most_running == 3


def test_one_of_several_steps_with_the_same_key_runs_and_the_others_become_hits() -> None:
    project = FakeProject(
        a_step("m", "engine", "one", key="same"),
        a_step("m", "engine", "two", key="same"),
        a_step("n", "engine", "three", key="same"),
    )
    outcome = project.execute(jobs=4)
    assert outcome.ok
    assert len(project.ran) == len(outcome.ran) == 1


def test_after_a_failure_no_other_step_starts() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"),
        a_step("m", "engine", "a", "m/trace/t"),
        a_step("n", "engine", "b", "n/trace/u"),
        a_step("n", "trace", "u"),
    )
    project.failing_steps = {"m/trace/t"}
    outcome = project.execute(jobs=1)
    assert not outcome.ok
    assert project.ran == ["m/trace/t"]
    assert set(outcome.failed) == {"m/trace/t"}


def test_keep_going_runs_the_steps_that_do_not_depend_on_the_failure() -> None:
    project = FakeProject(
        a_step("m", "trace", "t"),
        a_step("m", "engine", "a", "m/trace/t"),
        a_step("n", "trace", "u"),
        a_step("n", "engine", "b", "n/trace/u"),
    )
    project.failing_steps = {"m/trace/t"}
    outcome = project.execute(jobs=1, keep_going=True)
    assert not outcome.ok
    assert project.ran == ["m/trace/t", "n/trace/u", "n/engine/b"]


def execute_with_damage(project: FakeProject, times: int) -> Outcome:
    """Build a project whose package step finds a damaged blob of the engine `times` times."""
    original_run = project.run
    remaining = [times]

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        if step.stage == "package" and remaining[0]:
            remaining[0] -= 1
            project.records.clear()  # as if the blob were in the quarantine: the engine step is a miss now
            project.order.append("damage")
            raise EntryCorrupt("it does not match its digest")
        return original_run(step, plan)

    return project.execute(jobs=1, run=run)


def test_a_damaged_blob_is_made_again_by_its_step() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    outcome = execute_with_damage(project, 1)
    assert outcome.ok
    assert project.ran == ["m/engine/a", "damage", "m/engine/a", "m/package/p"]
    assert outcome.retries == {"m/package/p": 1}


def test_a_blob_that_is_damaged_after_every_retry_is_an_error() -> None:
    project = FakeProject(a_step("m", "engine", "a"), a_step("m", "package", "p", "m/engine/a"))
    outcome = execute_with_damage(project, MAX_RETRIES + 1)
    assert set(outcome.failed) == {"m/package/p"}


def trace_engine_package(model: str, *, key: str = "") -> list[Step]:
    return [
        a_step(model, "trace", "t", key=f"{model}-t"),
        a_step(model, "engine", "e", f"{model}/trace/t", key=key or f"{model}-e"),
        a_step(model, "package", "p", f"{model}/engine/e", key=f"{model}-p"),
    ]


def test_outputs_are_written_as_soon_as_their_model_is_done() -> None:
    project = FakeProject(*trace_engine_package("m"), *trace_engine_package("n"))
    written = threading.Event()

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        if step.model == "n" and step.stage == "engine":
            assert written.wait(30), "m's outputs are written while n is built"
        return project.run(step, plan)

    def write(plan: ModelPlan) -> list[WrittenOutput]:
        written.set()
        return project.write(plan)

    outcome = project.execute(run=run, write=write)
    assert outcome.ok
    assert list(outcome.written) == ["m", "n"]


def test_outputs_of_finished_models_are_written_although_another_model_fails() -> None:
    project = FakeProject(*trace_engine_package("m"), *trace_engine_package("n"))
    for step in trace_engine_package("m"):
        assert step.recipe is not None
        project.records[step.recipe.key] = Record(step.recipe, {})
    project.failing_steps = {"n/trace/t"}
    outcome = project.execute(jobs=1)
    assert set(outcome.written) == {"m"}
    assert set(outcome.failed) == {"n/trace/t"}


def test_outputs_with_damaged_blobs_are_written_after_their_step_has_run_again() -> None:
    project = FakeProject(*trace_engine_package("m"))
    remaining = [2]

    def write(plan: ModelPlan) -> list[WrittenOutput]:
        if remaining[0]:
            remaining[0] -= 1
            (engine,) = [step for step in project.steps if step.stage == "engine"]
            del project.records[engine.key or ""]  # as if the blob were in the quarantine
            raise EntryCorrupt("it does not match its digest")
        return project.write(plan)

    outcome = project.execute(write=write)
    assert outcome.ok
    assert project.ran.count("m/engine/e") == 3
    assert set(outcome.written) == {"m"}


@pytest.mark.parametrize("rebuild_lost", [True, False])
def test_outputs_that_cannot_be_read_after_every_retry_are_an_error(rebuild_lost: bool) -> None:
    project = FakeProject(*trace_engine_package("m"))
    attempts = []

    def write(plan: ModelPlan) -> list[WrittenOutput]:
        attempts.append(plan.model.name)
        raise BlobMissing("gone")

    outcome = project.execute(write=write, rebuild_lost=rebuild_lost)
    assert not outcome.ok
    assert isinstance(outcome.unwritten["m"], BlobMissing)
    assert len(attempts) == (MAX_RETRIES + 1 if rebuild_lost else 1)


def test_a_step_whose_result_disappears_each_time_is_an_error_and_not_an_endless_loop() -> None:
    project = FakeProject(*trace_engine_package("m"))

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        ran = project.run(step, plan)
        if step.stage == "engine":
            project.records.clear()
        return ran

    outcome = project.execute(run=run)
    assert not outcome.ok
    (error,) = [error for _, error in outcome.failed.values()]
    assert "missing or damaged each time" in error.text


def test_only_the_model_that_cannot_be_planned_again_fails() -> None:
    project = FakeProject(*trace_engine_package("m"), *trace_engine_package("n"))
    original_plan = project.plan

    def plan(name: str) -> ModelPlan:
        if name == "m":
            raise SourceError("its weights file is gone")
        return original_plan(name)

    outcome = Outcome({name: original_plan(name) for name in ("m", "n")})
    execute(outcome, Callbacks(plan, project.run, project.write), jobs=2, keep_going=True, watcher=Watcher())
    assert set(outcome.failed) == {"m/engine/e"}
    assert set(outcome.written) == {"n"}


def test_a_step_waits_for_memory_unless_no_other_step_runs() -> None:
    project = FakeProject(*(a_step("m", "engine", f"e{k}") for k in range(6)))
    assert project.execute(jobs=4, limit=MemoryLimit(lambda step: 10, lambda: 9)).ok
    assert project.most_running == 1


def test_after_a_failure_no_other_step_with_the_same_key_runs() -> None:
    project = FakeProject(*trace_engine_package("m", key="same"), *trace_engine_package("n", key="same"))
    project.failing_steps = {"m/engine/e", "n/engine/e"}
    outcome = project.execute(jobs=1, keep_going=True)
    assert len([name for name in project.ran if "engine" in name]) == 1
    assert len(outcome.failed) == 1


def test_a_model_is_planned_again_once_for_all_its_engines() -> None:
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


def test_an_interrupted_build_aborts_and_does_not_wait_for_a_thread_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trtbuild.driver.building.execution.executor.SHUTDOWN_TIMEOUT_S", 0.1)
    project = FakeProject(*trace_engine_package("m"), *trace_engine_package("n"))
    may_end, aborted, ended = threading.Event(), [], []

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        if step.model == "m":
            may_end.wait(60)
            ended.append(step.id)
        raise KeyboardInterrupt  # as if a signal had arrived now

    outcome = Outcome({name: project.plan(name) for name in ("m", "n")})
    with pytest.raises(KeyboardInterrupt):
        execute(outcome, Callbacks(project.plan, run, abort=lambda: aborted.append(True)), jobs=2, watcher=Watcher())
    assert (aborted, ended) == ([True], [])
    may_end.set()


class AnnouncingProject(FakeProject):
    """A project whose traces announce their results, and end when `checked` is set. With `fails`, their checks fail."""

    def __init__(self, *steps: Step, fails: bool = False) -> None:
        super().__init__(*steps)
        self.checked = threading.Event()
        self._fails = fails

    def run(self, step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        if step.stage != "trace":
            return super().run(step, plan)
        ran = super().run(step, plan)
        announce()
        assert self.checked.wait(30), "no step that reads the announced results has started"
        if self._fails:
            assert step.key is not None
            del self.records[step.key]
            raise SourceError("the traced program is not the model")
        return ran


@pytest.mark.parametrize("fails", [False, True])
def test_announced_results_are_used_before_the_step_has_ended(fails: bool) -> None:
    project = AnnouncingProject(
        a_step("m", "trace", "t"),
        a_step("m", "lower", "l", "m/trace/t"),
        a_step("m", "engine", "a", "m/lower/l"),
        a_step("m", "engine", "b", "m/lower/l"),
        a_step("m", "package", "p", "m/engine/a", "m/engine/b"),
        fails=fails,
    )
    project.meeting = threading.Barrier(2)

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None]) -> StepRun:
        ran = project.run(step, plan, announce)
        if step.stage == "package":
            project.checked.set()  # the trace waits for this
        return ran

    outcome = project.execute(run=run, keep_going=True)
    assert project.ran[:2] == ["m/trace/t", "m/lower/l"]
    assert set(project.ran) == {"m/trace/t", "m/lower/l", "m/engine/a", "m/engine/b", "m/package/p"}
    assert [*outcome.failed] == (["m/trace/t"] if fails else [])
    assert [*outcome.written] == ([] if fails else ["m"]), "outputs are written only after the check"
    assert project.most_running == 2, "one announced step does not count as a job"


def test_an_announced_step_runs_once_for_two_models_with_its_key() -> None:
    project = AnnouncingProject(
        a_step("a", "trace", "t", key="same"),
        a_step("a", "lower", "l", "a/trace/t"),
        a_step("b", "trace", "t", key="same"),
        a_step("b", "lower", "l", "b/trace/t", key="other"),
    )

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None]) -> StepRun:
        if step.id == "a/lower/l":
            project.checked.set()
        return project.run(step, plan, announce)

    outcome = project.execute(run=run)
    assert outcome.ok
    assert project.ran.count("a/trace/t") + project.ran.count("b/trace/t") == 1
    assert {*outcome.written} == {"a", "b"}


@pytest.mark.parametrize("fails", [False, True])
def test_the_outputs_of_a_model_wait_for_the_announced_step_of_another_model(fails: bool) -> None:
    project = AnnouncingProject(
        a_step("a", "trace", "t", key="same"),
        a_step("b", "engine", "first"),
        a_step("b", "trace", "t", "b/engine/first", key="same"),
        a_step("b", "package", "p", "b/trace/t"),
        fails=fails,
    )
    announced = threading.Event()

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None]) -> StepRun:
        def announce_and_note() -> None:
            announce()
            announced.set()

        if step.id == "b/engine/first":  # without the wait, model b would be planned before the announcement
            assert announced.wait(30)
        ran = project.run(step, plan, announce_and_note)
        if step.id == "b/package/p":
            threading.Timer(
                0.2, project.checked.set
            ).start()  # the next plan of model b comes before the end of the check
        return ran

    outcome = project.execute(run=run, keep_going=True, jobs=3)
    assert "b/package/p" in project.ran, "model b has used the announced results"
    assert "b/trace/t" not in project.ran
    assert {*outcome.written} == (set() if fails else {"a", "b"})
    assert outcome.plans["b"].steps["b/trace/t"].verdict == ("run" if fails else "hit")
