"""Jobs for the engines that have to be built: each engine is in one job, a job has one target, and jobs are balanced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.core.conftest import ADA, BLACKWELL, HOPPER, FakeWorld, a_model
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model, Origin, Source, Target
from trtbuild.core.planning import matrix
from trtbuild.core.planning.graph import ModelPlan, Reason, Step, step_id
from trtbuild.core.planning.matrix import MatrixJob, engine_jobs
from trtbuild.core.recipes.recipe import Recipe

NEW = Reason("new", "it was not built in this project before")


def a_plan(name: str, *targets: Target, keys: dict[str, list[str]] | None = None) -> ModelPlan:
    """Return the plan of a model. A target has an engine for each name in its entry of `keys`. Without `keys`, each target
    has one unknown engine."""
    plan = ModelPlan(
        Model(name, Source("python", "m:f"), (Input("x"),), (), targets, Origin("m.yaml", 1)), ShapePlan((), ())
    )
    for target in targets:
        for key in [""] if keys is None else keys.get(target.name, []):
            recipe = Recipe("engine", 1, (("name", key),)) if key else None
            identifier = step_id(name, "engine", key, target.name)
            verdict = "run" if key else "unknown"
            plan.steps[identifier] = Step(identifier, name, "engine", verdict, NEW, target.name, recipe)  # type: ignore[arg-type]
    return plan


def _seconds(step: Step) -> float:
    """Return the duration of an engine: the number at the end of its name, or 5 s for an unknown engine."""
    return 5.0 if step.recipe is None else float(str(dict(step.recipe.parts)["name"]).rpartition("-")[2])


def _job_lines(
    *plans: ModelPlan, job_duration_s: float = 600, estimate_s: Callable[[Step], float] = _seconds
) -> list[str]:
    """Return a line for each job: its target, its models, and its number if its target has several jobs."""
    return [
        f"{job.target.name}: {' '.join(job.models)}{f' ({job.number}/{job.count})' if job.count > 1 else ''}"
        for job in engine_jobs(plans, estimate_s, job_duration_s)
    ]


def test_a_built_project_has_no_job_and_a_new_project_has_a_job_for_each_target() -> None:
    world = FakeWorld()
    model = a_model(targets=(ADA, HOPPER))
    assert _job_lines(world.plan(model)) == ["ada: net", "hopper: net"]  # not partitioned
    world.build(model)
    assert _job_lines(world.plan(model)) == []
    world.files["net.py"] += "layer layers.3 gelu\n"
    assert _job_lines(world.plan(model)) == ["ada: net", "hopper: net"]
    world.build(model)
    more = replace(model, targets=(ADA, HOPPER, BLACKWELL))
    assert _job_lines(world.plan(more), estimate_s=lambda step: 1.0) == ["blackwell: net"]


def test_jobs_are_balanced_by_duration_and_name_models_in_the_order_of_the_project() -> None:
    plans = [
        a_plan(name, ADA, keys={"ada": [f"{name}-{duration_s}"]})
        for name, duration_s in zip("abcde", (90, 10, 100, 80, 20), strict=True)
    ]
    assert _job_lines(*plans, job_duration_s=300) == ["ada: a b c d e"]
    assert _job_lines(*plans, job_duration_s=299) == ["ada: b c e (1/2)", "ada: a d (2/2)"]
    assert [job.duration_s for job in engine_jobs(plans, _seconds, 150)] == [130.0, 170.0]
    assert len(engine_jobs(plans, _seconds, 0.001)) == len(plans)  # a job has at least one model


def test_an_engine_is_in_one_job_only() -> None:
    shared = [
        a_plan("a", ADA, keys={"ada": ["own-50", "x-50"]}),
        a_plan("b", ADA, keys={"ada": ["y-50"]}),
        a_plan("c", ADA, keys={"ada": ["z-50"]}),
        a_plan("d", ADA, keys={"ada": ["x-50", "y-50"]}),
    ]
    assert _job_lines(*shared, job_duration_s=1) == ["ada: a b d (1/2)", "ada: c (2/2)"]
    assert [job.duration_s for job in engine_jobs(shared, _seconds, 1)] == [150.0, 50.0]


def test_the_first_of_two_equal_targets_builds_their_common_engines() -> None:
    twin = replace(ADA, name="twin")
    plan = a_plan("a", ADA, twin, keys={"ada": ["x-5"], "twin": ["x-5"]})
    assert _job_lines(plan) == ["ada: a"]
    other = a_plan("b", twin, keys={"twin": ["x-5", "y-5"]})
    assert _job_lines(plan, other) == ["ada: a", "twin: b"]


def test_targets_with_one_name_in_two_manifests_are_different() -> None:
    other = replace(BLACKWELL, name="ada")
    plans = [a_plan("a", ADA, keys={"ada": ["x-5"]}), a_plan("b", other, keys={"ada": ["y-5"]})]
    assert [(job.target.sm, job.models) for job in engine_jobs(plans, _seconds, 1)] == [(89, ("a",)), (120, ("b",))]


def test_there_are_at_most_as_many_jobs_as_github_allows() -> None:
    plans = [a_plan(f"m{n}", ADA, BLACKWELL) for n in range(300)]
    jobs = engine_jobs(plans, _seconds, 1)
    assert matrix.MAX_JOBS / 4 < len(jobs) <= matrix.MAX_JOBS, "many jobs, although 600 would be too many"
    for target in (ADA, BLACKWELL):
        assert sum(len(job.models) for job in jobs if job.target == target) == 300


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=3), st.booleans()), max_size=12), st.integers(1, 60))
def test_every_engine_is_in_exactly_one_job(models: list[tuple[set[int], bool]], job_duration_s: int) -> None:
    plans = []
    for number, (keys, is_known) in enumerate(models):
        known = {"ada": [f"k{key}-{key}" for key in sorted(keys)]}
        plans.append(a_plan(f"m{number}", ADA, keys=known if is_known else None))
    jobs = engine_jobs(plans, _seconds, job_duration_s)
    assert _engines(jobs, plans) == sorted({step.key or step.id for plan in plans for step in plan.steps.values()})
    named = [model for job in jobs for model in job.models]
    assert sorted(named) == sorted({plan.model.name for plan in plans if plan.steps})
    assert all(job.models for job in jobs)


def _engines(jobs: list[MatrixJob], plans: list[ModelPlan]) -> list[str]:
    """Return the engines of all jobs. If several models of a job share an engine, the engine counts once."""
    steps = {plan.model.name: plan.steps.values() for plan in plans}
    engines_of_jobs = [{step.key or step.id for model in job.models for step in steps[model]} for job in jobs]
    return sorted(engine for engines in engines_of_jobs for engine in engines)
