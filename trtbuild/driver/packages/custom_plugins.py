"""Load a package's library of TensorRT plugins, before its engines are loaded.

Loading the library runs its code, and the package may come from another person. So the caller must pass
``load_plugins=True``.
"""

from __future__ import annotations

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.errors import PluginsNotLoaded
from trtbuild.runtime.packages.package import Package
from trtbuild.toolchain.running.execution import TensorRT

PLUGINS_ADVICE = "load with `load_plugins=True`"


def require_permission(index: PackageIndex, *, load_plugins: bool) -> None:
    """Raise PluginsNotLoaded if a package has a library of plugins and `load_plugins` is False."""
    plugins = index.plugins
    if plugins is not None and plugins.library is not None and not load_plugins:
        raise PluginsNotLoaded(
            f"the engines of {index.model!r} call TensorRT plugins of the library {plugins.name} in the package, and a "
            "package may come from another person",
            hint=f"{PLUGINS_ADVICE} if you trust the package: it runs the code of {plugins.library}",
        )


def load_plugins(package: Package, library: TensorRT, *, verify: bool) -> None:
    """Load the plugins of a package into this process. `library` is the TensorRT that runs the package's engines.

    The caller must call `require_permission` first. Raises PluginError, PackageDamaged or LinkRefused."""
    plugins = package.index.plugins
    if plugins is None:
        return
    data = None
    if plugins.library is not None:
        data = bytes(package.read([plugins.library], verify=verify)[plugins.library])
    library.require_plugins(plugins.plugins, data, f"the library {plugins.name} of the package")
