"""A Dask preload: the worker pretends to compile. ``TRTBUILD_TEST_PRETENDS`` says how.

``compile``: as `site.pretend`. ``wait``: the first compiler writes its pid to the file ``begun`` in the worker's directory,
and then waits until it is killed; later ones compile. ``wait-in-write``: the same, in the middle of writing a blob.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tests.driver.farm.site import pretend
from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.driver.farm import performing
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.results import Reply

_WAIT_S = 60.0


def dask_setup(worker: Any) -> None:
    """Dask calls this in each worker process."""
    vars(performing)["call"] = compile_or_wait


def compile_or_wait(pool: Any, task: str, job: EngineJob) -> Reply:
    begun = performing.directory() / "begun"
    how = os.environ["TRTBUILD_TEST_PRETENDS"]
    always = how.endswith("-always")
    if how.startswith("wait") and (always or not begun.exists()):
        if how.startswith("wait-in-write"):
            with wiring.open_local(performing.directory()).open_writer() as writer:
                writer.write(bytes(1 << 20))
                _wait(begun)
        _wait(begun)
    return pretend(pool, task, job)


def _wait(begun: Any) -> None:
    with begun.open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(_WAIT_S)
    raise AssertionError("nobody has killed this worker")
