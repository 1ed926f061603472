"""The lean and the dispatch runtime of TensorRT: their modules, distributions and installed versions.

Both runtimes have the part of TensorRT's Python API that runs engines. They have no builder and no parser. In releases
10.16 and 11.4, their modules can be imported without a GPU driver.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.spec import ToolchainName
from trtbuild.core.packages.engine_libraries import LibraryName
from trtbuild.errors import ToolchainMissing
from trtbuild.toolchain.libraries import distributions, table


@dataclass(frozen=True)
class RuntimeLibrary:
    """A library that runs the version-compatible plans of `toolchain`, and builds nothing."""

    name: LibraryName
    toolchain: ToolchainName
    #: The distribution that a user installs.
    distribution: str
    #: The Python modules with its API. The first is the module of the bindings, which only 8.6.0 lacks. The second module
    #: imports the bindings. It is used only if the first is not installed, because in some releases it imports the bindings
    #: of the full TensorRT (https://github.com/NVIDIA/TensorRT/issues/4520).
    modules: tuple[str, ...]

    @property
    def version_distributions(self) -> tuple[str, ...]:
        """The distributions that may have the version of the library. From 8.6.1 on, the bindings are a separate
        distribution. From 10 on, each major version of CUDA has its own distribution of the bindings."""
        stem = self.distribution
        return (*(f"{stem}{cuda}-bindings" for cuda in ("-cu13", "-cu12", "-cu11", "")), stem)


RUNTIMES: Mapping[LibraryName, RuntimeLibrary] = {
    "tensorrt_lean": RuntimeLibrary(
        "tensorrt_lean", "tensorrt", "tensorrt-lean", ("tensorrt_lean_bindings", "tensorrt_lean")
    ),
    "tensorrt_dispatch": RuntimeLibrary(
        "tensorrt_dispatch", "tensorrt", "tensorrt-dispatch", ("tensorrt_dispatch_bindings", "tensorrt_dispatch")
    ),
}


def installed_runtime(name: LibraryName) -> str | None:
    """Return the installed version of a runtime, or None. Imports nothing."""
    versions = (distributions.installed_version(each) for each in RUNTIMES[name].version_distributions)
    return next((version for version in versions if version is not None), None)


def installed_libraries() -> dict[str, str | None]:
    """Map each library that runs engines to its installed version, or to None. Imports nothing."""
    flavours: dict[str, str | None] = {name: table.installed_version(name) for name in table.FLAVOURS}
    return {**flavours, **{name: installed_runtime(name) for name in RUNTIMES}}


def load_runtime(name: LibraryName, version: str) -> Any:
    """Import the Python module of a runtime. Raises ToolchainMissing if this fails. `version` is for its message."""
    runtime = RUNTIMES[name]
    for module in runtime.modules:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise _import_error(runtime, version, error) from error
        except (ImportError, OSError) as error:
            raise _import_error(runtime, version, error) from error
    raise _import_error(runtime, version, f"there is no module {' or '.join(runtime.modules)}")


def _import_error(runtime: RuntimeLibrary, version: str, reason: object) -> ToolchainMissing:
    return ToolchainMissing(
        f"{runtime.name} {version} cannot be loaded: {reason}",
        hint=f"pip install --force-reinstall '{runtime.distribution}=={version}'",
    )
