"""A toolchain that measures kernels builds one engine at a time on each GPU, in a worker that sees only this GPU."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.conftest import HOPPER, FakeWorld, a_model
from tests.driver.building.execution.test_executor import FakeProject, a_step
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.planning.resource_limit import NoLimit
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.execution.gpu_limit import GPU_BASE_BYTES, GpuLimit, least_gpu_bytes
from trtbuild.driver.project.outcome import StepRun
from trtbuild.driver.workers import worker_process
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.tasks import call

GIB = 1 << 30


def _steps() -> dict[str, Step]:
    world = FakeWorld()
    model = a_model(targets=(*a_model().targets, HOPPER))
    world.build(model)
    return world.plan(model).steps


def _engine(name: str, sm: int = 90) -> Step:
    target = Target(f"sm{sm}", sm, toolchain="tensorrt")
    return replace(a_step("m", "engine", name), job=EngineJob(name, (), (), BuilderSettings(), target, "8.6.0"))


def _limit(sms: Sequence[int], free: dict[int, int] | None = None) -> GpuLimit:
    return GpuLimit(NoLimit(), lambda: sms, lambda gpu: None if free is None else free[gpu])


@pytest.mark.parametrize("sms", [(90,), (89, 90, 89), ()])
def test_one_engine_at_a_time_uses_the_only_fitting_gpu_and_other_steps_are_not_limited(sms: Sequence[int]) -> None:
    steps = _steps()
    hopper = [step for name, step in steps.items() if name.endswith("@hopper") and step.stage == "engine"]
    ada = [step for name, step in steps.items() if name.endswith("@ada") and step.stage == "engine"]
    limit = _limit(sms)
    assert len(hopper) > 1 and all(limit.allows(step) for step in steps.values())
    limit.acquire(hopper[0])
    assert limit.gpu_of(hopper[0]) == (sms.index(90) if sms else None)
    assert not limit.allows(hopper[1])
    assert all(limit.allows(step) for step in (*ada, steps["net/trace"], steps["net/package"]))
    for step in ada:
        limit.acquire(step)
        assert limit.gpu_of(step) is None
    limit.release(ada[0])
    assert not limit.allows(hopper[1])
    limit.release(hopper[0])
    assert limit.allows(hopper[1]) and limit.gpu_of(hopper[0]) is None


def test_each_gpu_with_the_sm_of_the_target_gets_one_engine() -> None:
    limit = _limit((90, 80, 90))
    first, second, third, other = _engine("a"), _engine("b"), _engine("c"), _engine("d", sm=80)
    for step in (first, second, other):
        assert limit.allows(step)
        limit.acquire(step)
    assert [limit.gpu_of(step) for step in (first, second, other)] == [0, 2, 1]
    assert not limit.allows(third)
    limit.release(first)
    assert limit.allows(third)
    limit.acquire(third)
    assert limit.gpu_of(third) == 0


def test_the_gpu_with_the_most_free_memory_is_chosen() -> None:
    limit = _limit((90, 90, 90), {0: 2 * GIB, 1: 70 * GIB, 2: 30 * GIB})
    limit.acquire(_engine("a"))
    limit.acquire(_engine("b"))
    assert [limit.gpu_of(_engine(name)) for name in "ab"] == [1, 2]


def test_a_gpu_without_enough_free_memory_is_used_only_while_no_other_engine_runs() -> None:
    free = {0: 70 * GIB, 1: GPU_BASE_BYTES - 1}
    limit = _limit((90, 90), free)
    first, second = _engine("a"), _engine("b")
    limit.acquire(first)
    assert not limit.allows(second)
    free[1] = least_gpu_bytes(second)
    assert limit.allows(second)
    free[1] = 0
    limit.release(first)
    free[0] = 0
    assert limit.allows(second)  # otherwise no engine would ever start


def test_the_inner_limit_applies_to_every_step() -> None:
    class Full(NoLimit):
        def allows(self, step: Step) -> bool:
            return False

    assert not any(GpuLimit(Full()).allows(step) for step in _steps().values())


def test_several_gpus_build_engines_at_once_and_never_two_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor and the pool are real, but the three GPUs are not. The worker processes run ``engine_worker.py``, a
    substitute that compiles nothing."""
    arguments = [str(Path(__file__).with_name("engine_worker.py")), str(tmp_path), "3"]
    monkeypatch.setattr(
        worker_process, "command", lambda kind, store, project: [sys.executable, *arguments, str(store)]
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8932f937,2")
    steps = [_engine(f"e{number}") for number in range(9)]
    limit, pool = _limit((90, 90, 90)), WorkerPool(tmp_path / "store", tmp_path)

    def run(step: Step, plan: ModelPlan, announce: Callable[[], None] = lambda: None) -> StepRun:
        call(pool, "engine", step.job, limit.gpu_of(step))
        assert step.recipe is not None
        record = project.records[step.recipe.key] = Record(step.recipe, {})
        return StepRun(record, 0.1)

    project = FakeProject(*steps)
    try:
        outcome = project.execute(jobs=9, run=run, limit=limit)
    finally:
        pool.close(kill=True)
    assert outcome.ok, outcome.failed
    pids_by_gpu = defaultdict(list)
    for line in (tmp_path / "jobs").read_text().splitlines():
        gpu, pid = line.split()
        pids_by_gpu[gpu].append(pid)
    assert set(pids_by_gpu) == {"5", "GPU-8932f937", "2"}
    assert sum(map(len, pids_by_gpu.values())) == len(steps)
    assert all(len(set(pids)) == 1 for pids in pids_by_gpu.values())  # one worker builds all engines of a GPU
