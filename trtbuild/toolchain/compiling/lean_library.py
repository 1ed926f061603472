"""Open the library of the lean runtime, which the builder copies into a version-compatible plan.

Rules
1. The builder opens the library by its name (``libnvinfer_lean.so.8``) and copies the file that it gets. Without the file,
   the plan of 8.6.0 is empty.
2. trtbuild opens the file before the build, from the first of these places: the folder of TensorRT's own library (NVIDIA's
   archives and packages), the wheel of the lean runtime (except for 8.6.0, rule 3), and the places where the loader looks.
   The builder then gets the same file, because a library of this name is already open (tried with TensorRT-RTX 1.7.1).
3. The builder of 8.6.0 opens ``libnvinfer_lean.so.8.6.0``, but the wheel's file has the name ``libnvinfer_lean.so.8``. The
   loader does not accept a file that is open under another name (tried on an H100), so the user has to make a link.
4. The library must have the version of the toolchain, because its bytes become a part of the engine. The key of the engine
   has only the toolchain's version.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trtbuild.core.engines.engine_job import EngineJob
from trtbuild.errors import EnvironmentFault, ToolchainMissing
from trtbuild.toolchain.libraries.mapped import allowed_versions, library_files, library_version, versions_agree
from trtbuild.toolchain.libraries.releases import version_numbers
from trtbuild.toolchain.libraries.table import FLAVOURS, Flavour

#: The folder with the library in the wheels of the lean runtime: the first from 8.6.1 on, the second in 8.6.0.
_WHEEL_FOLDERS = ("tensorrt_lean_libs", "tensorrt_lean")
#: The versions whose builder opens the library by a name with the full version (rule 3).
_VERSIONS_WITH_FULL_NAMES = ("8.6.0",)


def open_lean_library(job: EngineJob) -> None:
    """Open the lean runtime's library if the builder needs it for `job`.

    Raises ToolchainMissing if the library cannot be found or opened. Raises EnvironmentFault for another version (rule 4).
    """
    flavour = FLAVOURS[job.target.toolchain]
    if flavour.lean_library is None or not job.settings.version_compatible or job.settings.exclude_lean_runtime:
        return
    needs_link = job.toolchain_version in _VERSIONS_WITH_FULL_NAMES
    soname = f"{flavour.lean_library}.{version_numbers(job.toolchain_version)[0]}"
    name = f"{flavour.lean_library}.{job.toolchain_version}" if needs_link else soname
    places = _tensorrt_places(flavour, name) if needs_link else _places(flavour, name)
    found = next((str(file) for file in places if file.is_file()), None)
    try:
        ctypes.CDLL(found or name)
    except OSError as error:
        problem = f"{name} was not found" if found is None else f"{found} cannot be opened: {error}"
        advice = f", or add the folder of {name} to LD_LIBRARY_PATH"
        if needs_link:
            advice = f", create a link {name} to the wheel's {soname}, and add the link's folder to LD_LIBRARY_PATH"
        raise ToolchainMissing(
            f"builder.version_compatible puts the lean runtime of {job.toolchain_text} into the engine, and {problem}",
            hint=f"{_install_command(job)}{advice}, or set exclude_lean_runtime: true",
        ) from error
    _check_version(flavour, job)


def _tensorrt_places(flavour: Flavour, name: str) -> Iterator[Path]:
    for library in library_files(flavour.library):
        yield library.parent / name


def _places(flavour: Flavour, name: str) -> Iterator[Path]:
    """Yield the first two places of rule 2."""
    yield from _tensorrt_places(flavour, name)
    for entry in sys.path:
        for folder in _WHEEL_FOLDERS:
            yield Path(entry or os.curdir) / folder / name


def _check_version(flavour: Flavour, job: EngineJob) -> None:
    assert flavour.lean_library is not None
    allowed = allowed_versions(flavour, job.toolchain_version)
    for library in library_files(flavour.lean_library):
        version = library_version(library)
        if version is not None and not any(versions_agree(version, each) for each in allowed):
            version_text = ".".join(map(str, version))
            raise EnvironmentFault(
                f"the engine must contain the lean runtime of {job.toolchain_text}, but {library} is {version_text}",
                hint=_install_command(job),
            )


def _install_command(job: EngineJob) -> str:
    return f"pip install 'tensorrt-lean=={job.toolchain_version}'"
