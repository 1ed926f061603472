"""The engines of a package on one GPU, with the TensorRT library of the package's target."""

from __future__ import annotations

from typing import cast

from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.packages.package_index import PackedTarget
from trtbuild.runtime.engines.engine_set import EngineSet
from trtbuild.runtime.engines.runtime_cache import KernelFile, find_gpu, kernel_file_paths
from trtbuild.runtime.memory.choosing import choose_memory
from trtbuild.runtime.packages.package import Package
from trtbuild.toolchain.running.execution import load_library


class Engines(EngineSet):
    """Implements `trtbuild.runtime.calls.loaded.Engines` for a package. Raises ToolchainMissing and EnvironmentFault."""

    def __init__(self, package: Package, target: PackedTarget, ordinal: int) -> None:
        toolchain = cast(ToolchainName, target.toolchain)
        library = load_library(toolchain, None if target.runs_on_later_versions else target.version)
        device = find_gpu(ordinal)
        kernels = None
        if device is not None:
            kernels = KernelFile(kernel_file_paths(package.path, package.digest, library.name, library.version, device))
        super().__init__(library, choose_memory(ordinal), kernels)
