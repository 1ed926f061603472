"""Connect a command to the workers of a Dask scheduler (`--workers`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from trtbuild.core.planning.graph import Step
from trtbuild.core.planning.resource_limit import ResourceLimit
from trtbuild.driver.building.progress.events import Watcher
from trtbuild.driver.project.workspace import Workspace

if TYPE_CHECKING:
    from trtbuild.driver.farm.farm import Farm


@contextlib.contextmanager
def farm_of_build(
    workspace: Workspace, pending: Collection[Step], watcher: Watcher, messages: list[str]
) -> Iterator[Farm | None]:
    """The workers that compile the engines among the `pending` steps; None if this machine compiles them.

    Messages and errors are those of `connected_farm`.
    """
    if workspace.workers is None or not any(step.stage == "engine" for step in pending):
        yield None
        return
    with connected_farm(workspace, workspace.workers, watcher, messages) as farm:
        yield farm


@contextlib.contextmanager
def connected_farm(workspace: Workspace, address: str, watcher: Watcher, messages: list[str]) -> Iterator[Farm]:
    """The workers of the scheduler at this address.

    Messages about the workers are shown at once, and are added to `messages`. Raises UsageError or EnvironmentFault.
    """
    from trtbuild.driver.farm.opening import open_farm  # takes 0.1 s, and few builds have a scheduler

    def report(text: str) -> None:
        messages.append(text)
        watcher.warned(text)

    with contextlib.ExitStack() as stack:
        with watcher.phase("connect to the workers"):
            farm = stack.enter_context(
                open_farm(address, workspace.project, workspace.configuration, workspace.store, report)
            )
        yield farm


def threads_and_limit(farm: Farm | None, local_limit: ResourceLimit, jobs: int) -> tuple[int, ResourceLimit]:
    """The number of threads that run steps, and the limit on the steps that run at the same time.

    `local_limit` and `jobs` are those for the steps of this machine."""
    if farm is None:
        return jobs, local_limit
    from trtbuild.driver.farm.limit import MOST_JOBS, FarmLimit

    return jobs + MOST_JOBS, FarmLimit(farm, local_limit, jobs)
