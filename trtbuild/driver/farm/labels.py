"""The labels of workers. A label is a Dask resource: the scheduler sends a job only to a worker with all labels of the job.

Rules
1. A worker process can have labels of four kinds. They name the engines that it can compile, the GPU on which it can
   compare engines with PyTorch, its release of trtbuild, and the stores that it can reach. Dask gives each resource an
   amount. The amount of each label is the number of jobs that the process does at the same time.
2. A job needs three labels: an engine or a GPU, a release, and a store. So Dask never sends a job to a worker with
   another release, toolchain or store, and never sends two jobs to one GPU at the same time.
3. The label of a GPU contains all facts of `GpuKind` as JSON. So the driver can compute the key of a verification before
   it sends the job to a worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.core.recipes.keys import STEP_VERSIONS
from trtbuild.driver.farm.messages import PROTOCOL
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind, kind_here
from trtbuild.store.local.layout import unavailable_error
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.distributions import installed_version

_ENGINE, _GPU = "trtbuild engine ", "trtbuild gpu "
_RELEASE, _STORE = "trtbuild release ", "trtbuild store "


def engine_label(job: EngineJob) -> str:
    """The label of the workers that can compile `job`."""
    flavour = table.FLAVOURS[job.target.toolchain]
    return _engine_label(flavour, job.toolchain_version, job.target.platform, job.target.sm)


def _engine_label(flavour: table.Flavour, version: str, platform: str, sm: int) -> str:
    gpu = f"SM {sm}" if flavour.needs_gpu else "any SM"
    return f"{_ENGINE}{flavour.name} {version} {platform} {gpu}"


def engine_labels_here(sms: Iterable[int]) -> list[str]:
    """The engine labels of a process on this machine.

    `sms` are the architectures (SMs) of the GPUs that the process may use. A process with a GPU compiles only with
    toolchains that need a GPU. A process without a GPU compiles with the other toolchains, whose labels have ``any SM``.
    """
    visible, labels = tuple(dict.fromkeys(sms)), []
    for name, flavour in table.FLAVOURS.items():
        version = table.installed_version(name)
        if version is None or flavour.needs_gpu != bool(visible):
            continue
        any_sm = 0  # for a flavour that needs no GPU, the label does not contain this number
        labels += [_engine_label(flavour, version, table.host_platform(), sm) for sm in visible or (any_sm,)]
    return labels


def gpu_label(kind: GpuKind) -> str:
    """The label of the workers that can compare engines on a GPU of this kind."""
    return _GPU + kind.to_text()


def gpu_labels_here(ordinal: int) -> list[str]:
    """The GPU label of a process that uses only the GPU `ordinal`; empty if the process cannot compare engines on it."""
    kind = kind_here(ordinal)
    return [] if kind is None else [gpu_label(kind)]


def gpu_kind_of(label: str) -> GpuKind | None:
    """The kind of GPU in a label; None if the label is not a GPU label, or if this release cannot read it."""
    if not label.startswith(_GPU):
        return None
    try:
        return GpuKind.from_text(label.removeprefix(_GPU))
    except ValueError:
        return None


def release_label() -> str:
    """The label of workers with this release of trtbuild. Another release may do the same job in another way."""
    return f"{_RELEASE}{installed_version('trtbuild')} engine {STEP_VERSIONS['engine']} protocol {PROTOCOL}"


def directory_label(root: Path) -> str:
    """The label of the processes that use the cache directory `root` of this machine. The directory is created if it is
    missing. Raises StoreUnavailable."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        status = root.stat()
    except OSError as error:
        raise unavailable_error(error, str(root)) from error
    return _STORE + _short_digest(f"{_boot_id()} {status.st_dev} {status.st_ino}")


def remote_label(url: str) -> str:
    """The label of the machines that read and write the remote cache at `url`. The label contains no credentials."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return _STORE + _short_digest(f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}")


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _boot_id() -> str:
    """A text that differs between machines: Linux's boot id or, on other systems, the address of a network card."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import uuid

        return f"{uuid.getnode():x}"


def engines_of(resources: Mapping[str, float]) -> list[str]:
    """The engines that a worker can compile, as texts for messages: ``tensorrt-rtx 1.7.1 linux-x86_64 any SM``."""
    return [label.removeprefix(_ENGINE) for label in resources if label.startswith(_ENGINE)]


def release_of(resources: Mapping[str, float]) -> str | None:
    """The release of a worker, as text for messages. None if the worker is not a worker of trtbuild."""
    return next((label.removeprefix(_RELEASE) for label in resources if label.startswith(_RELEASE)), None)


def gpus_of(resources: Mapping[str, float]) -> list[str]:
    """The GPUs on which a worker can compare engines, as texts for messages."""
    return [str(kind) for label in resources if (kind := gpu_kind_of(label)) is not None]


def is_engine(label: str) -> bool:
    return label.startswith(_ENGINE)


def describe(label: str) -> str:
    """The ability of the workers with a label, as the end of a sentence that begins with "no worker".

    A text that is not an engine or GPU label is returned unchanged."""
    if (kind := gpu_kind_of(label)) is not None:
        return f"has the GPU {kind}"
    return f"compiles for {label.removeprefix(_ENGINE)}" if is_engine(label) else label


def task_name(key: str, store: str) -> str:
    """The scheduler's name for the task of a step or verification. Two builds with the same `key` and `store` share it."""
    return f"trtbuild-{key}-{store.removeprefix(_STORE)}"
