"""A preload for Dask workers: they sleep ``TRTBUILD_BENCH_SLEEP_S`` seconds instead of compiling.

The workers still fetch the job, and store the result.
"""

from __future__ import annotations

import os
import time
from typing import Any

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.driver.farm import performing
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.results import Reply


def dask_setup(worker: Any) -> None:
    """Replace the compiler. Dask calls this function in each worker process."""
    vars(performing)["call"] = _sleep


def _sleep(pool: Any, task: str, job: EngineJob) -> Reply:
    seconds = float(os.environ["TRTBUILD_BENCH_SLEEP_S"])
    time.sleep(seconds)
    local = wiring.open_local(performing.directory())
    outputs = {"plan": local.put_bytes(f"plan of {job.onnx}".encode()), "layers": local.put_bytes(b"[]")}
    return Reply(outputs, duration_s=seconds, log="", peak_rss_bytes=0)
