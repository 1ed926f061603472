"""Records wait until the steps that they depend on have passed their checks, and are dropped if a check fails."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.driver.building.execution.test_executor import a_step
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.building.steps.unchecked import Publication, UncheckedSteps
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.errors import InternalError, SourceError, StoreError

TRACE = a_step("m", "trace", "t")
LOWER = a_step("m", "lower", "l", "m/trace/t")
ENGINE = a_step("m", "engine", "e", "m/lower/l")
OUTPUTS = {"program": Output("0" * 64, 1)}


class FakeLookups:
    """The records that plans use, by key."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def note_run(self, step: str, record: Record) -> None:
        self.records[record.recipe.key] = record

    note_announced = note_run

    def use_record(self, record: Record) -> None:
        self.records[record.recipe.key] = record

    def withdraw(self, step: str, key: str) -> None:
        self.records.pop(key, None)

    def forget(self, key: str) -> None:
        del self.records[key]


class Build:
    """Runs steps with `UncheckedSteps`. `stored` has the ids of the steps with published records, oldest first."""

    def __init__(self) -> None:
        self.lookups = FakeLookups()
        self.steps = UncheckedSteps(cast(StoreLookups, self.lookups))
        self.stored: list[str] = []
        model = Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
        self.plan = ModelPlan(model, ShapePlan((), ()))
        self.plan.steps = {step.id: step for step in (TRACE, LOWER, ENGINE)}

    def finish(self, step: Step, publication: Publication) -> None:
        record = record_of(step)

        def put() -> Record:
            self.stored.append(step.id)
            return record

        publication.compare_with_announced(record.outputs)
        publication.finish(publication.publish([record], put))

    def run(self, step: Step) -> None:
        with self.steps.running(step, self.plan, lambda: None) as publication:
            self.finish(step, publication)


def record_of(step: Step) -> Record:
    assert step.recipe is not None
    return Record(step.recipe, OUTPUTS)


def key_of(step: Step) -> str:
    assert step.key is not None
    return step.key


def test_a_record_is_published_when_all_checks_before_it_have_passed() -> None:
    build = Build()
    with build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce(OUTPUTS)
        with build.steps.running(LOWER, build.plan, lambda: None) as lower:
            lower.announce(OUTPUTS)
            build.run(ENGINE)
            assert {*build.lookups.records} == {key_of(TRACE), key_of(LOWER), key_of(ENGINE)}, "plans use all results"
            assert build.stored == []
            build.finish(LOWER, lower)
        assert build.stored == [], "the trace is not checked yet"
        assert build.steps.unpublished_ids == {"m/lower/l", "m/engine/e"}
        assert build.steps.unpublished_keys == {key_of(TRACE), key_of(LOWER), key_of(ENGINE)}
        build.finish(TRACE, trace)
    assert build.stored == ["m/trace/t", "m/engine/e", "m/lower/l"]
    assert build.steps.unpublished_ids == build.steps.unpublished_keys == set()


def test_a_failed_check_drops_the_records_of_the_later_steps_and_no_others() -> None:
    build = Build()
    with pytest.raises(SourceError), build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce(OUTPUTS)
        build.run(LOWER)
        other = replace(a_step("n", "engine", "e"), producers=())
        build.run(other)
        raise SourceError("the traced program is not the model")
    assert build.stored == ["n/engine/e"]
    assert {*build.lookups.records} == {key_of(other)}, "plans use no result of the failed trace, or of a step after it"
    build.run(ENGINE)  # this step ends after the failed check
    assert build.stored == ["n/engine/e"]
    assert build.steps.unpublished_ids == {"m/lower/l", "m/engine/e"}


def test_plans_do_not_use_an_announced_step_that_passes_after_an_earlier_check_has_failed() -> None:
    build = Build()
    with build.steps.running(LOWER, build.plan, lambda: None) as lower:
        with pytest.raises(SourceError), build.steps.running(TRACE, build.plan, lambda: None) as trace:
            trace.announce(OUTPUTS)
            lower.announce(OUTPUTS)
            assert key_of(LOWER) in build.lookups.records
            raise SourceError("the traced program is not the model")
        build.finish(LOWER, lower)
    assert build.stored == []
    assert build.lookups.records == {}


def test_a_step_that_starts_again_publishes_its_record() -> None:
    build = Build()
    with pytest.raises(StoreError), build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce(OUTPUTS)
        build.run(LOWER)
        raise StoreError("a blob is missing")
    with build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce(OUTPUTS)
        build.run(LOWER)
        build.finish(TRACE, trace)
    assert build.stored == ["m/trace/t", "m/lower/l"]
    assert build.steps.unpublished_ids == set()


def test_an_error_while_a_waiting_record_is_published_is_raised_after_the_others_are_published() -> None:
    build = Build()

    def put_fails() -> Record:
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="full"), build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce(OUTPUTS)
        with build.steps.running(LOWER, build.plan, lambda: None) as lower:
            lower.finish(lower.publish([record_of(LOWER)], put_fails))
        build.run(ENGINE)
        build.finish(TRACE, trace)
    assert build.stored == ["m/trace/t", "m/engine/e"]
    assert build.steps.unpublished_ids == {"m/lower/l"}


def test_a_step_must_return_the_outputs_that_it_has_announced() -> None:
    build = Build()
    with pytest.raises(InternalError, match="m/trace/t"), build.steps.running(TRACE, build.plan, lambda: None) as trace:
        trace.announce({"program": Output("1" * 64, 1)})
        build.finish(TRACE, trace)
    assert build.stored == []
    assert build.lookups.records == {}


def test_nothing_is_announced_if_the_caller_forbids_it() -> None:
    build = Build()
    with build.steps.running(TRACE, build.plan, None) as trace:
        trace.announce(OUTPUTS)
        assert build.lookups.records == {}
        build.run(LOWER)
        assert build.stored == ["m/lower/l"]
