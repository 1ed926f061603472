"""The engines of a package on one GPU: the runtime, and the TensorRT library that the package's target names."""

from __future__ import annotations

from typing import cast

from trtbuild.core.package_index import PackedTarget
from trtbuild.core.spec import ToolchainName
from trtbuild.runtime.engine_set import EngineSet
from trtbuild.runtime.memory import choose_memory
from trtbuild.runtime.package import Package
from trtbuild.runtime.runtime_cache import KernelFile, gpu, places
from trtbuild.toolchain.execution import load_library


class Engines(EngineSet):
    """What `trtbuild.runtime.loaded` makes parts with. Raises ToolchainMissing and EnvironmentFault."""

    def __init__(self, package: Package, target: PackedTarget, ordinal: int) -> None:
        toolchain = cast(ToolchainName, target.toolchain)
        library = load_library(toolchain, None if target.runs_on_later else target.version)
        device = gpu(ordinal)
        kernels = None
        if device is not None:
            kernels = KernelFile(places(package.path, package.digest, library.name, library.version, device))
        super().__init__(library, choose_memory(ordinal), kernels)
