"""The step before the longest remaining work is the most urgent."""

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
    return Step(f"m/{stage}/{part}", "m", stage, verdict, Reason("new", ""), job=job, after=after)


def a_plan(*steps: Step) -> ModelPlan:
    model = Model("m", Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    return ModelPlan(model, ShapePlan((), ()), {step.id: step for step in steps})


def unknown(step: str) -> None:
    return None


def test_a_gate_leads_to_everything_behind_it() -> None:
    plan = a_plan(
        a_step("trace", ""), a_step("lower", ""), a_step("partition", ""), a_step("engine", "a"), a_step("package", "")
    )
    found = ranks(plan, unknown)
    order = sorted(found, key=lambda step: -found[step])
    assert order == list(plan.steps)
    assert found["m/trace/"] == sum(TYPICAL_S[stage] for stage in ("trace", "lower", "partition", "engine", "package"))


def test_the_last_duration_is_the_best_guess() -> None:
    plan = a_plan(a_step("engine", "a"), a_step("engine", "b"), a_step("package", ""))
    found = ranks(plan, {"m/engine/b": 100.0}.get)
    assert found["m/engine/b"] == 100.0 + TYPICAL_S["package"]
    assert found["m/engine/a"] < found["m/engine/b"]


def test_an_unknown_engine_is_estimated_by_its_weights_each_once() -> None:
    weights = [Weight("float32", (10, 10), "a"), Weight("int8", (7,), "b")]
    large = a_step("engine", "large", weights=[*weights, weights[0]])
    assert weights_bytes(large) == 407
    found = ranks(a_plan(a_step("engine", "small"), large), unknown)
    assert found["m/engine/large"] - found["m/engine/small"] == pytest.approx(407 * ENGINE_S_PER_BYTE)


def test_a_conversion_leads_to_its_engines_alone() -> None:
    plan = a_plan(
        a_step("convert", "a"),
        a_step("convert", "b"),
        a_step("engine", "a1", "m/convert/a"),
        a_step("engine", "a2", "m/convert/a"),
        a_step("engine", "b1", "m/convert/b"),
    )
    found = ranks(plan, unknown)
    assert found["m/convert/a"] - found["m/convert/b"] == TYPICAL_S["engine"]


def test_hits_have_no_rank_and_count_for_nothing() -> None:
    plan = a_plan(a_step("trace", "", verdict="hit"), a_step("lower", ""), a_step("engine", "a", verdict="hit"))
    assert ranks(plan, unknown) == {"m/lower/": TYPICAL_S["lower"]}
