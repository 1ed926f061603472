"""A Dask preload that makes a worker pretend to compile. ``TRTBUILD_TEST_PRETENDS`` is one of these modes:

* ``compile``: each job calls `pretend_to_compile`.
* ``wait``: the first job writes the pid of its process to the file ``begun`` in the worker's directory. It then waits
  until the process is killed. Later jobs pretend to compile.
* ``wait-in-write``: like ``wait``, but the first job waits in the middle of writing a blob.
* ``wait-always``: each job writes the pid and waits.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.driver.farm.cluster import pretend_to_compile
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
    mode = os.environ["TRTBUILD_TEST_PRETENDS"]
    is_first = not begun.exists()
    if mode == "wait-always" or (mode == "wait" and is_first):
        _wait(begun)
    elif mode == "wait-in-write" and is_first:
        with wiring.open_local(performing.directory()).open_writer() as writer:
            writer.write(bytes(1 << 20))
            _wait(begun)
    return pretend_to_compile(pool, task, job)


def _wait(begun: Path) -> None:
    with begun.open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(_WAIT_S)
    raise AssertionError("the test has not killed this worker")
