"""The schedule adds steps as soon as they may start: urgent first, each key once, plans only if a step depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import Reason, Stage, Step, Verdict
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.building.schedule import LOOK_AHEAD, Schedule

NEW = Reason("new", "")


def a_step(model: str, stage: Stage, name: str, *after: str, verdict: Verdict = "run", key: str | None = None) -> Step:
    recipe = None if verdict == "unknown" else Recipe(stage, 1, (("name", key or f"{model}{stage}{name}"),))
    return Step(f"{model}/{stage}/{name}", model, stage, verdict, NEW, recipe=recipe, after=after)


def a_plan(model: str, *steps: Step) -> ModelPlan:
    source = Model(model, Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    return ModelPlan(source, ShapePlan((), ()), {step.id: step for step in steps})


def taken(schedule: Schedule) -> Iterator[Step]:
    while (step := schedule.take()) is not None:
        yield step


def test_the_most_urgent_first_and_in_order_where_that_is_equal() -> None:
    schedule = Schedule()
    steps = [a_step("m", "engine", name) for name in "abcd"]
    schedule.put(a_plan("m", *steps), {"m/engine/c": 5.0, "m/engine/d": 1.0, "m/engine/b": 1.0})
    assert [step.id[-1] for step in taken(schedule)] == ["c", "b", "d", "a"]


def test_what_consumes_a_step_that_is_no_hit_waits() -> None:
    schedule = Schedule()
    trace, below = a_step("m", "trace", "t"), a_step("m", "lower", "l", "m/trace/t")
    schedule.put(a_plan("m", trace, below), {"m/lower/l": 9.0})
    assert [step.id for step in taken(schedule)] == ["m/trace/t"]
    schedule.finished(trace)
    assert schedule.take() is None, "its model is planned first"
    assert schedule.due() == ["m"]
    schedule.put(a_plan("m", replace(trace, verdict="hit"), below), {})
    assert schedule.due() == []
    assert [step.id for step in taken(schedule)] == ["m/lower/l"]


def test_of_steps_with_one_key_one_runs_at_a_time_and_the_models_of_all_are_planned_again() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = taken(schedule)
    schedule.finished(first)
    assert sorted(schedule.due()) == ["m", "n"]


def test_a_key_that_has_to_be_tried_again_is_free_for_the_other_model() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = taken(schedule)
    assert first.model == "m"
    schedule.again(first)
    assert schedule.due() == ["m"]
    assert [step.model for step in taken(schedule)] == ["n"]


def test_a_key_that_has_failed_never_starts_again() -> None:
    schedule = Schedule()
    for name in "mn":
        schedule.put(a_plan(name, a_step(name, "engine", "e", key="same")), {})
    (first,) = taken(schedule)
    schedule.failed(first)
    schedule.put(a_plan("m", a_step("m", "engine", "e", key="same")), {})
    assert list(taken(schedule)) == []
    assert schedule.outdated() == []


def test_engines_that_are_done_make_their_model_due_only_when_the_last_is() -> None:
    schedule = Schedule()
    engines = [a_step("m", "engine", str(k)) for k in range(5)]
    package = a_step("m", "package", "p", *(step.id for step in engines), verdict="unknown")
    schedule.put(a_plan("m", *engines, package), {})
    for step in list(taken(schedule)):
        assert schedule.due() == []
        schedule.finished(step)
    assert schedule.outdated() == ["m"]
    assert schedule.due() == ["m"]


def test_a_model_is_planned_again_after_a_step_that_it_no_longer_has() -> None:
    schedule = Schedule()
    schedule.put(a_plan("m", a_step("m", "engine", "e", key="old")), {})
    (running,) = taken(schedule)
    schedule.put(a_plan("m", a_step("m", "engine", "e", key="new")), {})
    schedule.finished(running)
    assert schedule.due() == ["m"]


def test_what_is_given_up_is_not_started_and_not_due() -> None:
    schedule = Schedule()
    schedule.put(a_plan("m", a_step("m", "trace", "t"), a_step("m", "trace", "u")), {})
    step = schedule.take()
    assert step is not None
    schedule.finished(step)
    first = schedule.give_up("m")
    assert first is not None and first.id == "m/trace/u"
    assert schedule.take() is None
    assert schedule.due() == schedule.outdated() == []


def test_a_smaller_step_may_go_ahead_of_one_that_does_not_fit() -> None:
    schedule = Schedule()
    steps = [a_step("m", "engine", name) for name in ("large", "small")]
    schedule.put(a_plan("m", *steps), {"m/engine/large": 2.0, "m/engine/small": 1.0})
    small = schedule.take(lambda step: step.id.endswith("small"))
    assert small is not None and small.id == "m/engine/small"
    assert [step.id for step in taken(schedule)] == ["m/engine/large"], "it is not forgotten"


def test_only_some_are_looked_at_when_none_fits() -> None:
    schedule = Schedule()
    schedule.put(a_plan("m", *(a_step("m", "engine", str(k)) for k in range(1000))), {})
    asked: list[str] = []

    def fits(step: Step) -> bool:
        asked.append(step.id)
        return False

    assert schedule.take(fits) is None
    assert len(asked) == LOOK_AHEAD
    assert len(list(taken(schedule))) == 1000
