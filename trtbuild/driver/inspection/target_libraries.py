"""For each target of a package: the installed library that runs the target's engines."""

from __future__ import annotations

from trtbuild.core.packages.engine_libraries import choose_library, library_problem
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.driver.inspection.documents import TargetLibrary
from trtbuild.toolchain.libraries.runtimes import installed_libraries


def target_libraries(index: PackageIndex) -> list[TargetLibrary]:
    """Return an entry for each target with engines, in the order of the package. No library is imported."""
    installed = installed_libraries()
    entries = []
    for target in index.targets.values():
        if not target.engines:
            continue
        library = choose_library(target, installed)
        entries.append(
            TargetLibrary(
                target=target.name,
                library=None if library is None else library.name,
                version=None if library is None else library.version,
                because=library_problem(target, installed)[0] if library is None else None,
            )
        )
    return entries
