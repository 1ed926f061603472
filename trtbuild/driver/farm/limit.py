"""The limit on the steps that run at the same time in a build with Dask workers."""

from __future__ import annotations

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.resource_limit import ResourceLimit
from trtbuild.driver.farm import labels
from trtbuild.driver.farm.farm import Farm

#: The number of threads that a build adds for engine steps, because each step waits for its worker in a thread.
MOST_JOBS = 1024


class FarmLimit:
    """Allows an engine step if `farm` has room for it.

    Other steps run on this machine. At most `jobs` of them run at the same time, and `inner_limit` has to allow each.
    """

    def __init__(self, farm: Farm, inner_limit: ResourceLimit, jobs: int) -> None:
        self._farm = farm
        self._inner_limit = inner_limit
        self._jobs = jobs
        self._local_step_count = 0

    def allows(self, step: Step) -> bool:
        if isinstance(step.job, EngineJob):
            return self._farm.has_room(labels.engine_label(step.job))
        return self._local_step_count < self._jobs and self._inner_limit.allows(step)

    def acquire(self, step: Step) -> None:
        if isinstance(step.job, EngineJob):
            self._farm.begin(labels.engine_label(step.job))
            return
        self._local_step_count += 1
        self._inner_limit.acquire(step)

    def release(self, step: Step) -> None:
        if isinstance(step.job, EngineJob):
            self._farm.end(labels.engine_label(step.job))
            return
        self._local_step_count -= 1
        self._inner_limit.release(step)
