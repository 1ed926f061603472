"""Engines that are timed on a GPU are built one at a time."""

from __future__ import annotations

from tests.core.conftest import HOPPER, FakeWorld, a_model
from trtbuild.core.planning.graph import Step
from trtbuild.driver.building.executor import NoLimit
from trtbuild.driver.building.gpu_limit import GpuLimit


def _steps() -> dict[str, Step]:
    world = FakeWorld()
    model = a_model(targets=(*a_model().targets, HOPPER))
    world.build(model)
    return world.plan(model).steps


def test_one_engine_at_a_time_uses_the_gpu_and_other_steps_are_not_limited() -> None:
    steps = _steps()
    hopper = [step for name, step in steps.items() if name.endswith("@hopper") and step.stage == "engine"]
    ada = [step for name, step in steps.items() if name.endswith("@ada") and step.stage == "engine"]
    limit = GpuLimit(NoLimit())
    assert len(hopper) > 1 and all(limit.allows(step) for step in steps.values())
    limit.acquire(hopper[0])
    assert not limit.allows(hopper[1])
    assert all(limit.allows(step) for step in (*ada, steps["net/trace"], steps["net/package"]))
    for step in ada:
        limit.acquire(step)
    limit.release(ada[0])
    assert not limit.allows(hopper[1])
    limit.release(hopper[0])
    assert limit.allows(hopper[1])


def test_the_inner_limit_applies_to_every_step() -> None:
    class Full(NoLimit):
        def allows(self, step: Step) -> bool:
            return False

    assert not any(GpuLimit(Full()).allows(step) for step in _steps().values())
