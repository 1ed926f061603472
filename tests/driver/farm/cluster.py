"""A scheduler and workers in this process, and a farm that uses them. The workers pretend to compile.

The messages, the stores, the signatures and Dask are real. Only the compiler is replaced: a plan is a text with
the digest of its ONNX model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client, Scheduler, SpecCluster, Worker

from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT, EngineJob
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import Target
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.driver.configuration import Configuration
from trtbuild.driver.farm import performing
from trtbuild.driver.farm.exchange import exchanges
from trtbuild.driver.farm.farm import CompiledOnWorker, Farm
from trtbuild.driver.farm.known_workers import KnownWorkers
from trtbuild.driver.farm.labels import gpu_label
from trtbuild.driver.farm.processes import processes_here
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.results import Reply
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.toolchain.libraries.table import installed_version

#: Takes the text of a job and the name of a worker. Returns the answer of this worker.
Behaviour = Callable[[str, str], performing.Answer]

ADA = Target("ada", 89)

VERSION = installed_version("tensorrt-rtx") or "1.7.1"


def engine_job(onnx: bytes, target: Target = ADA, version: str = VERSION) -> tuple[EngineJob, Recipe]:
    """A job without weights, and its recipe."""
    job = EngineJob(hashlib.sha256(onnx).hexdigest(), (), (), BuilderSettings(), target, version)
    return job, keys.engine(job, ENGINE_ENVIRONMENT)


def pretend_to_compile(pool: Any, task: str, job: EngineJob) -> Reply:
    """Store texts in place of a plan and its layers. The tests replace `performing.call` by this function."""
    local = wiring.open_local(performing.directory())
    local.get_bytes(job.onnx)  # a compiler reads its input
    outputs = {"plan": local.put_bytes(f"plan of {job.onnx}".encode()), "layers": local.put_bytes(b"[]")}
    return Reply(outputs, duration_s=0.1, log="pretended\n", peak_rss_bytes=1)


class Cluster:
    """A scheduler on 127.0.0.1. `behaviours` maps names of workers to functions that answer in place of the workers."""

    def __init__(self) -> None:
        options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
        self._spec_cluster = SpecCluster({}, {"cls": Scheduler, "options": options}, silence_logs=logging.CRITICAL)
        self.client = Client(self._spec_cluster, set_as_default=False)
        self.behaviours: dict[str, Behaviour] = {}
        self._workers: list[Worker] = []

    @property
    def address(self) -> str:
        return str(self._spec_cluster.scheduler_address)

    def add_worker(
        self,
        name: str,
        behaviour: Behaviour | None = None,
        *,
        project: Path,
        slots: int = 1,
        gpu: GpuKind | None = None,
        **changes: str,
    ) -> Worker:
        """Start a worker that announces the GPU `gpu`, or no GPU. `changes` replaces text in its labels (old → new)."""
        (process,) = [each for each in processes_here(project, 1, slots) if "gpu" not in each.name]
        labels = (*process.labels, *([] if gpu is None else [gpu_label(gpu)]))
        for old, new in changes.items():
            labels = tuple(label.replace(old, new) for label in labels)
        options = dataclasses.replace(process, name=name, labels=labels).options("127.0.0.1", None)
        # only a worker in a separate process needs these options; this worker runs in the process of the test
        del options["env"], options["silence_logs"], options["preload"]

        async def start() -> Worker:
            return await Worker(self.address, **options)

        if behaviour is not None:
            self.behaviours[name] = behaviour
        worker: Worker = self.client.sync(start)
        self._workers.append(worker)
        return worker

    def stop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self.client.sync(worker.close)

    def clear(self) -> None:
        """End all workers."""
        for worker in list(self._workers):
            self.stop(worker)
        self.behaviours.clear()
        deadline = time.monotonic() + 10
        while self.client.scheduler_info()["workers"]:
            assert time.monotonic() < deadline, "the scheduler still has workers"
            time.sleep(0.02)

    def close(self) -> None:
        self.client.close()
        self._spec_cluster.close()


class Driver:
    """The driver of one build: its store, its farm (the workers that it uses), and its messages for the user."""

    def __init__(
        self,
        client: Client,
        project: Path,
        configuration: Configuration,
        *,
        root: Path | None = None,
        wait_s: float = 0.5,
    ) -> None:
        self.messages: list[str] = []
        self.store: LayeredStore = wiring.open_store(project, configuration, root)
        exchange_by_label = exchanges(self.store, configuration)
        self.workers = KnownWorkers(client, tuple(exchange_by_label), wait_s, self.messages.append)
        self.farm = Farm(client, self.workers, self.store, exchange_by_label)

    def compile(self, onnx: bytes = b"onnx", *, replace: bool = False, **job: Any) -> CompiledOnWorker:
        """Compile an engine through the farm, and check that its plan is the right one."""
        self.store.put_bytes(onnx)
        engine, recipe = engine_job(onnx, **job)
        with self.store.session():
            compiled = self.farm.compile(recipe, engine, [engine.onnx], replace=replace)
        plan = self.store.get_bytes(compiled.record.outputs["plan"].sha256)
        assert plan == f"plan of {engine.onnx}".encode()
        assert compiled.record.recipe.key == recipe.key
        return compiled
