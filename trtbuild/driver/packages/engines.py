"""The engines of one target of a package, on one GPU."""

from __future__ import annotations

from pathlib import Path

from trtbuild.core.packages.package_index import PackedTarget
from trtbuild.driver.packages.custom_plugins import load_plugins
from trtbuild.driver.packages.machine import library_for
from trtbuild.runtime.engines.engine_set import EngineSet
from trtbuild.runtime.engines.runtime_cache import KernelFile, find_gpu, kernel_file_paths
from trtbuild.runtime.memory.choosing import choose_memory
from trtbuild.runtime.packages.package import Package
from trtbuild.toolchain.running.execution import load_library


class PackageEngines(EngineSet):
    """Implements `trtbuild.runtime.calls.loaded.PackageEngines` for a package.

    The constructor loads the package's plugins, so the caller must call `custom_plugins.require_permission` first.

    Raises NoFittingTarget, EnvironmentFault (for example ToolchainMissing), EngineError, PluginError, PackageDamaged and
    PackageMissing."""

    def __init__(self, package: Package, target: PackedTarget, ordinal: int, *, verify: bool = True) -> None:
        library = load_library(library_for(target))
        load_plugins(package, library, verify=verify)
        device = find_gpu(ordinal)
        kernels = None
        if device is not None:
            root = Path(package.folder.root)
            kernels = KernelFile(kernel_file_paths(root, package.digest, library.name, library.version, device))
        super().__init__(library, choose_memory(ordinal), kernels)
