"""The worker processes of one machine: one for each GPU, and others for engines that are compiled without a GPU."""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.driver.farm import labels, worker_setup
from trtbuild.driver.farm.exchange import remote_labels
from trtbuild.driver.farm.performing import DIRECTORY_VARIABLE
from trtbuild.driver.project import wiring
from trtbuild.driver.workers.environments import visible_gpu
from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.libraries.devices import device_sms


@dataclass(frozen=True)
class WorkerProcess:
    """A process to start: its name, the most jobs that it does at the same time, its labels and environment variables."""

    name: str
    slots: int
    labels: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def options(self, host: str, security: object | None, *, log_level: int = logging.WARNING) -> dict[str, Any]:
        """The arguments of Dask's Nanny. A Nanny starts the process, and starts it again when it dies."""
        import dask.config
        import distributed  # noqa: F401 (adds its defaults to the configuration)

        return {
            "name": self.name,
            "nthreads": self.slots,
            "resources": dict.fromkeys(self.labels, self.slots),
            "env": dict(self.environment),
            "host": host,
            "security": security,
            "dashboard": False,
            "dashboard_address": "127.0.0.1:0",
            "memory_limit": None,
            "silence_logs": log_level,
            "preload": [worker_setup.__name__, *dask.config.get("distributed.worker.preload")],
        }


def processes_here(project: Path, cpu_processes: int, slots: int) -> list[WorkerProcess]:
    """The worker processes of this machine, which use `project` as their directory.

    Each usable GPU has one process. If a toolchain that needs no GPU is installed, there are `cpu_processes` others, each
    with up to `slots` jobs at the same time. Raises ToolchainMissing if this machine can neither compile nor compare
    engines.
    """
    common = _common_labels(project)
    environment = {DIRECTORY_VARIABLE: str(project)}
    # In containers, machines may have the same host name, and processes the same id. The scheduler refuses a name that it
    # knows, even if that worker is dead and the scheduler has not noticed it yet.
    prefix = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
    processes = [
        WorkerProcess(
            f"{prefix}-gpu{number}",
            1,
            (*gpu_labels, *common),
            {**environment, "CUDA_VISIBLE_DEVICES": visible_gpu(number, os.environ)},
        )
        for number, sm in enumerate(device_sms())
        if (gpu_labels := [*labels.engine_labels_here([sm]), *labels.gpu_labels_here(number)])
    ]
    if without_gpu := labels.engine_labels_here(()):
        processes += [
            WorkerProcess(f"{prefix}-cpu{number}", slots, (*without_gpu, *common), environment)
            for number in range(cpu_processes)
        ]
    if not processes:
        raise ToolchainMissing(
            "this machine has no toolchain that can compile an engine", hint="pip install 'trtbuild[rtx]'"
        )
    return processes


def _common_labels(project: Path) -> tuple[str, ...]:
    remotes = remote_labels(wiring.load_configuration(project))
    directory = labels.directory_label(wiring.store_root(project))
    return (labels.release_label(), directory, *(label for label, _ in remotes))
