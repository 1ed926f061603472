"""Do a comparison job, whose engines and inputs are blobs of a local store.

Rules
1. The job and the index of the package list the digests of the engines. Both lists are compared before an engine is loaded.
   So the engines that run are those in the key of the verification.
2. A model with operators from outside PyTorch or with a library of plugins is refused, because this code is in the
   project, which a worker does not have.
3. The index and the target's engines are copied from the store to a temporary folder in ``.trtbuild``. The engines then
   run as in `trtbuild.load`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtbuild.core.model.comparisons import Report
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.recipes.record import Output
from trtbuild.driver.gpu_comparisons import engines as engines_here
from trtbuild.driver.gpu_comparisons.gpu_kinds import GpuKind, kind_here
from trtbuild.driver.gpu_comparisons.job import ComparisonJob
from trtbuild.driver.packages.machine import this_machine
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.errors import EnvironmentFault, NotCompared
from trtbuild.runtime.packages.choice import choose_target
from trtbuild.runtime.packages.package import INDEX_NAME, open_package
from trtbuild.store.local.local import LocalStore

#: The names of the outputs of a comparison.
REPORT, WORST_INPUTS = "report", "worst inputs"

#: The number of the GPU. A worker process sees only one GPU.
ORDINAL = 0


@dataclass(frozen=True)
class ComparisonResult:
    """The report of a comparison. `worst` is the stored file of the inputs with the largest error; None without a file."""

    report: Report
    worst: Output | None


def why_project_is_needed(index: PackageIndex | None, operators: Sequence[object]) -> str | None:
    """The reason why a model's engines cannot be compared without its project (rule 2); None if they can.

    `operators` are the operators from outside PyTorch that the model calls.
    """
    if operators:
        return "its custom operators are files of this project; verify it on a machine with the project"
    if index is not None and index.plugins is not None and index.plugins.library is not None:
        return "its plugins are a library of this project; verify it on a machine with the project"
    return None


def require_kind(required: GpuKind) -> None:
    """Raise EnvironmentFault if the GPU of this process is not of the kind `required`."""
    found = kind_here(ORDINAL)
    if found is None or found.to_text() != required.to_text():
        raise EnvironmentFault(
            f"the job is for {required}; this machine has {found or 'no GPU that can compare engines with PyTorch'}",
            hint="start the worker again: its GPU, its driver or its libraries have changed",
        )


def compare(comparison: ComparisonJob, store: LocalStore, project: Path) -> ComparisonResult:
    """Compare the engines of a job. All blobs of the job are in `store`. `project` is the directory of the worker.

    Raises NotCompared, EnvironmentFault, StoreError or PackageError.
    """
    require_kind(comparison.gpu)
    if (reason := engines_here.reason_without_torch()) is not None:
        raise EnvironmentFault(f"engines cannot be compared here: {reason}", hint="install PyTorch for CUDA")
    data = store.get_bytes(comparison.index)
    index = read_index(data, f"the package of {comparison.target!r}")
    if (reason := why_project_is_needed(index, comparison.job.operators)) is not None:
        raise NotCompared(reason)
    _require_engines(index, comparison)
    choose_target(index, this_machine(comparison.gpu.sm, ORDINAL), comparison.target)
    state = project / STATE_FOLDER
    state.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="comparison-", dir=state) as name:
        folder = Path(name)
        package_folder = folder / "package"
        _write_package(package_folder, index, data, comparison.target, store)
        worst = folder / "worst.safetensors"
        replayed = None
        if comparison.replay is not None:
            replayed = folder / "replay.safetensors"
            store.copy_to(comparison.replay, str(replayed))
        report = engines_here.compare(
            replace(comparison.job, worst=str(worst), replay=None if replayed is None else str(replayed)),
            open_package(package_folder),
            engines_here.TargetGpu(comparison.target, ORDINAL, comparison.gpu.sm),
            engines_here.shapes_of(index),
            store.get_bytes,
        )
        found = store.put_file(str(worst)) if report.worst_input is not None else None
    return ComparisonResult(replace(report, worst_input=None), found)


def _require_engines(index: PackageIndex, comparison: ComparisonJob) -> None:
    """Raise EnvironmentFault if the index lacks the target or has other engines than the job (rule 1)."""
    target, toolchain = index.targets.get(comparison.target), (comparison.toolchain, comparison.version)
    if target is None or (target.toolchain, target.version) != toolchain:
        raise EnvironmentFault(f"the package of the job has no target {comparison.target!r} of {' '.join(toolchain)}")
    plans = {partition: index.files[path].sha256 for partition, path in target.engines.items()}
    if plans != dict(comparison.plans):
        raise EnvironmentFault("the package of the job has other engines than the job names")


def _write_package(folder: Path, index: PackageIndex, data: bytes, target: str, store: LocalStore) -> None:
    """Write the index of a package, and the engines of one target. No other file is needed to run them."""
    for path in index.targets[target].engines.values():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        store.copy_to(index.files[path].sha256, str(file))
    folder.mkdir(exist_ok=True)
    (folder / INDEX_NAME).write_bytes(data)
