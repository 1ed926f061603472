"""The rank of a step is the estimated duration of the step and of all work that waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trtbuild.core.engines.engine_job import EngineJob, Weight
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source, Target
from trtbuild.core.planning.graph import Reason, Stage, Step, Verdict
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.planning.priorities import ENGINE_S_PER_BYTE, TYPICAL_S, ranks, weights_bytes

TARGET = Target("ada", sm=89)


def a_step(stage: Stage, part: str, *after: str, verdict: Verdict = "run", weights: Sequence[Weight] = ()) -> Step:
    job = EngineJob("", tuple(weights), (), BuilderSettings(), TARGET, "1.7.1") if stage == "engine" else None
    return Step(f"m/{stage}/{part}", "m", stage, verdict, Reason("new", ""), job=job, producers=after)


def a_plan(*steps: Step) -> ModelPlan:
    model = Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    return ModelPlan(model, ShapePlan((), ()), {step.id: step for step in steps})


def no_duration(step: str) -> None:
    return None


def test_the_rank_of_a_step_is_the_duration_of_the_step_and_of_all_later_stages() -> None:
    plan = a_plan(
        a_step("trace", ""), a_step("lower", ""), a_step("partition", ""), a_step("engine", "a"), a_step("package", "")
    )
    rank_of = ranks(plan, no_duration)
    order = sorted(rank_of, key=lambda step: -rank_of[step])
    assert order == list(plan.steps)
    assert rank_of["m/trace/"] == sum(
        TYPICAL_S[stage] for stage in ("trace", "lower", "partition", "engine", "package")
    )


def test_the_last_duration_replaces_the_estimate() -> None:
    plan = a_plan(a_step("engine", "a"), a_step("engine", "b"), a_step("package", ""))
    rank_of = ranks(plan, {"m/engine/b": 100.0}.get)
    assert rank_of["m/engine/b"] == 100.0 + TYPICAL_S["package"]
    assert rank_of["m/engine/a"] < rank_of["m/engine/b"]


def test_a_new_engine_is_estimated_by_its_weights_each_counted_once() -> None:
    weights = [Weight("float32", (10, 10), "a"), Weight("int8", (7,), "b")]
    large = a_step("engine", "large", weights=[*weights, weights[0]])
    assert weights_bytes(large) == 4 * 100 + 7
    rank_of = ranks(a_plan(a_step("engine", "small"), large), no_duration)
    assert rank_of["m/engine/large"] - rank_of["m/engine/small"] == pytest.approx(
        weights_bytes(large) * ENGINE_S_PER_BYTE
    )


def test_the_rank_of_a_conversion_counts_its_engines_only() -> None:
    plan = a_plan(
        a_step("convert", "a"),
        a_step("convert", "b"),
        a_step("engine", "a1", "m/convert/a"),
        a_step("engine", "a2", "m/convert/a"),
        a_step("engine", "b1", "m/convert/b"),
    )
    rank_of = ranks(plan, no_duration)
    assert rank_of["m/convert/a"] - rank_of["m/convert/b"] == TYPICAL_S["engine"]


def test_hits_have_no_rank_and_add_nothing_to_ranks() -> None:
    plan = a_plan(a_step("trace", "", verdict="hit"), a_step("lower", ""), a_step("engine", "a", verdict="hit"))
    assert ranks(plan, no_duration) == {"m/lower/": TYPICAL_S["lower"]}
