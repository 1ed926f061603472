"""Of the engines that are timed on a GPU, one is built at a time."""

from __future__ import annotations

from tests.core.conftest import HOPPER, FakeWorld, a_model
from trtbuild.core.planning.graph import Step
from trtbuild.driver.building.executor import Unlimited
from trtbuild.driver.building.gpu_room import GpuRoom


def _steps() -> dict[str, Step]:
    world = FakeWorld()
    model = a_model(targets=(*a_model().targets, HOPPER))
    world.build(model)
    return world.plan(model).steps


def test_one_engine_for_a_gpu_at_a_time_and_any_number_of_others() -> None:
    steps = _steps()
    hopper = [step for name, step in steps.items() if name.endswith("@hopper") and step.stage == "engine"]
    ada = [step for name, step in steps.items() if name.endswith("@ada") and step.stage == "engine"]
    room = GpuRoom(Unlimited())
    assert len(hopper) > 1 and all(room.has(step) for step in steps.values())
    room.enter(hopper[0])
    assert not room.has(hopper[1])
    assert all(room.has(step) for step in (*ada, steps["net/trace"], steps["net/package"]))
    for step in ada:
        room.enter(step)
    room.leave(ada[0])
    assert not room.has(hopper[1])
    room.leave(hopper[0])
    assert room.has(hopper[1])


def test_there_is_no_more_room_than_inside() -> None:
    class Full(Unlimited):
        def has(self, step: Step) -> bool:
            return False

    assert not any(GpuRoom(Full()).has(step) for step in _steps().values())
