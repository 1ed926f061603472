"""The schedule returns the steps that may start: the most urgent first, and one of several steps with the same key.

A model is *outdated* if one of its steps has finished since its last plan. It is *due* if it has to be planned again now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import Reason, Stage, Step, Verdict
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.building.execution.schedule import MAX_OFFERED_STEPS, Schedule

NEW = Reason("new", "")


def a_step(model: str, stage: Stage, name: str, *after: str, verdict: Verdict = "run", key: str | None = None) -> Step:
    recipe = None if verdict == "unknown" else Recipe(stage, 1, (("name", key or f"{model}{stage}{name}"),))
    return Step(f"{model}/{stage}/{name}", model, stage, verdict, NEW, recipe=recipe, producers=after)


def a_plan(model: str, *steps: Step) -> ModelPlan:
    spec = Model(model, Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    return ModelPlan(spec, ShapePlan((), ()), {step.id: step for step in steps})


def take_all(schedule: Schedule) -> Iterator[Step]:
    while (step := schedule.take_step()) is not None:
        yield step


def test_the_most_urgent_step_is_first_and_equal_steps_keep_their_order() -> None:
    schedule = Schedule()
    steps = [a_step("m", "engine", name) for name in "abcd"]
    schedule.put_plan(a_plan("m", *steps), {"m/engine/c": 5.0, "m/engine/d": 1.0, "m/engine/b": 1.0})
    assert [step.id[-1] for step in take_all(schedule)] == ["c", "b", "d", "a"]


def test_a_step_waits_until_the_steps_before_it_are_hits() -> None:
    schedule = Schedule()
    trace, lower = a_step("m", "trace", "t"), a_step("m", "lower", "l", "m/trace/t")
    schedule.put_plan(a_plan("m", trace, lower), {"m/lower/l": 9.0})
    assert [step.id for step in take_all(schedule)] == ["m/trace/t"]
    schedule.note_finished(trace)
    assert schedule.take_step() is None, "its model is planned first"
    assert schedule.take_due_models() == ["m"]
    schedule.put_plan(a_plan("m", replace(trace, verdict="hit"), lower), {})
    assert schedule.take_due_models() == []
    assert [step.id for step in take_all(schedule)] == ["m/lower/l"]


def test_one_of_several_steps_with_the_same_key_runs_and_all_their_models_are_due() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put_plan(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = take_all(schedule)
    schedule.note_finished(first)
    assert sorted(schedule.take_due_models()) == ["m", "n"]


def test_a_key_whose_step_is_tried_again_may_run_for_the_other_model() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put_plan(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = take_all(schedule)
    assert first.model == "m"
    schedule.note_retry(first)
    assert schedule.take_due_models() == ["m"]
    assert [step.model for step in take_all(schedule)] == ["n"]


def test_a_key_that_has_failed_never_starts_again() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put_plan(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = take_all(schedule)
    schedule.note_failed(first)
    schedule.put_plan(a_plan("m", a_step("m", "engine", "e", key="same")), {})
    assert list(take_all(schedule)) == []
    assert schedule.outdated_models() == []


def test_a_model_is_due_only_after_its_last_engine() -> None:
    schedule = Schedule()
    engines = [a_step("m", "engine", str(k)) for k in range(5)]
    package = a_step("m", "package", "p", *(step.id for step in engines), verdict="unknown")
    schedule.put_plan(a_plan("m", *engines, package), {})
    for step in list(take_all(schedule)):
        assert schedule.take_due_models() == []
        schedule.note_finished(step)
    assert schedule.outdated_models() == ["m"]
    assert schedule.take_due_models() == ["m"]


def test_a_model_is_due_after_a_step_that_is_no_longer_in_its_plan() -> None:
    schedule = Schedule()
    schedule.put_plan(a_plan("m", a_step("m", "engine", "e", key="old")), {})
    (running,) = take_all(schedule)
    schedule.put_plan(a_plan("m", a_step("m", "engine", "e", key="new")), {})
    schedule.note_finished(running)
    assert schedule.take_due_models() == ["m"]


def test_steps_of_a_model_that_is_given_up_do_not_start() -> None:
    schedule = Schedule()
    schedule.put_plan(a_plan("m", a_step("m", "trace", "t"), a_step("m", "trace", "u")), {})
    step = schedule.take_step()
    assert step is not None
    schedule.note_finished(step)
    first = schedule.give_up("m")
    assert first is not None and first.id == "m/trace/u"
    assert schedule.take_step() is None
    assert schedule.take_due_models() == schedule.outdated_models() == []


def test_a_smaller_step_may_start_before_a_step_that_does_not_fit() -> None:
    schedule = Schedule()
    steps = [a_step("m", "engine", name) for name in ("large", "small")]
    schedule.put_plan(a_plan("m", *steps), {"m/engine/large": 2.0, "m/engine/small": 1.0})
    small = schedule.take_step(lambda step: step.id.endswith("small"))
    assert small is not None and small.id == "m/engine/small"
    assert [step.id for step in take_all(schedule)] == ["m/engine/large"], "the large step may start later"


def test_at_most_max_offered_steps_are_checked_if_no_step_fits() -> None:
    schedule = Schedule()
    schedule.put_plan(a_plan("m", *(a_step("m", "engine", str(k)) for k in range(1000))), {})
    checked: list[str] = []

    def fits(step: Step) -> bool:
        checked.append(step.id)
        return False

    assert schedule.take_step(fits) is None
    assert len(checked) == MAX_OFFERED_STEPS
    assert len(list(take_all(schedule))) == 1000
