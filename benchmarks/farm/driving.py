"""``python -m benchmarks.farm.driving ADDRESS STEPS SLOTS``: run engine steps on Dask workers, and print the costs as JSON.

ADDRESS is the address of the Dask scheduler. The measurement begins after a first step, so it does not include the start
of processes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT, EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.core.recipes import keys
from trtbuild.driver.configuration import WorkersSettings
from trtbuild.driver.farm.connecting import connect
from trtbuild.driver.farm.exchange import exchanges
from trtbuild.driver.farm.farm import Farm
from trtbuild.driver.farm.known_workers import KnownWorkers
from trtbuild.driver.project import wiring
from trtbuild.toolchain.libraries import table


def main(address: str, steps: int, slots: int) -> None:
    """Run `steps` engine steps, `slots` at the same time.

    The workers do not compile (`benchmarks.farm.sleeping`), so a short text takes the place of an ONNX model.
    """
    project = Path.cwd()
    configuration = wiring.load_configuration(project)
    store = wiring.open_store(project, configuration)
    version = table.installed_version("tensorrt-rtx") or "none"
    exchange_by_label = exchanges(store, configuration)
    with store.session(), connect(address, WorkersSettings(), project) as client:
        farm = Farm(
            client, KnownWorkers(client, tuple(exchange_by_label), wait_s=60.0, report=print), store, exchange_by_label
        )

        def step(number: int) -> None:
            # new bytes for each step, so that the store has no result
            onnx = store.put_bytes(f"{time.time_ns()} {number}".encode()).sha256
            job = EngineJob(onnx, (), (), BuilderSettings(), Target("ada", 89), version)
            farm.compile(keys.engine(job, ENGINE_ENVIRONMENT), job, [onnx], replace=False)

        step(-1)  # starts the processes
        started_s, cpu_s, peak_bytes = time.monotonic(), time.process_time(), _peak_bytes()
        with ThreadPoolExecutor(slots) as threads:
            for _ in threads.map(step, range(steps)):
                pass
        print(
            json.dumps(
                {
                    "elapsed_s": time.monotonic() - started_s,
                    "cpu_s": time.process_time() - cpu_s,
                    "grown_bytes": _peak_bytes() - peak_bytes,
                }
            )
        )


def _peak_bytes() -> int:
    """Return the peak of this process's resident memory. Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
