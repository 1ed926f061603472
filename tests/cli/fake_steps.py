"""Plans, steps and results with only the fields that the displays of progress read."""

from __future__ import annotations

from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source
from trtbuild.core.planning.graph import ModelPlan, Reason, Stage, Step, Verdict
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.outcome import StepRun

NEW = Reason("new", "it was not built in this project before")


def a_step(model: str, stage: Stage, verdict: Verdict = "run", reason: Reason = NEW) -> Step:
    return Step(f"{model}/{stage}", model, stage, verdict, reason, recipe=Recipe(stage, 1, (("model", model),)))


def a_plan(name: str, **verdicts: Verdict) -> ModelPlan:
    model = Model(name, Source("python", "m:f"), (Input("x"),), (), (), Origin("m.yaml", 1))
    plan = ModelPlan(model, ShapePlan((), ()))
    for stage, verdict in verdicts.items():
        step = a_step(name, stage, verdict)  # type: ignore[arg-type]
        plan.steps[step.id] = step
    return plan


def a_result(*, source: str = "built", conversions: int = 0) -> StepRun:
    return StepRun(
        Record(Recipe("trace", 1, ()), {}), 0.0, source=source, conversions={str(n): 0.1 for n in range(conversions)}
    )
