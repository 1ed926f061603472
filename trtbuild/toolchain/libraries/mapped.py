"""Find the TensorRT library files that this process has loaded, and check their versions.

Python bindings load their library by its name. So the loaded file depends on ``LD_LIBRARY_PATH``, on the loader's cache and
on the libraries that are already loaded.

Rules
1. The version of a library is the one that it reports (``getInferLibVersion``, NvInferRuntime.h), not its file name's.
2. An ONNX parser does not report its release (``getNvOnnxParserVersion`` returns 0.2.0 in TensorRT-RTX 1.7.1). If its file
   name contains a version with at least two numbers, this version is checked. Otherwise the parser must be in the library's
   folder, as in NVIDIA's archives and packages.
3. If one version has more numbers than the other, only the numbers that both have are compared.
4. If no file is found, only the version of the bindings is checked (`library.load`). This happens without ``/proc``, and
   if the library is linked into the bindings.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from trtbuild.errors import EnvironmentFault
from trtbuild.toolchain.libraries.releases import version_numbers
from trtbuild.toolchain.libraries.table import Flavour

#: The list of mapped files of a process (proc(5)).
_MAPS_FILE = Path("/proc/self/maps")
_DELETED_SUFFIX = " (deleted)"


def check_mapped_versions(flavour: Flavour, version: str) -> None:
    """Raise EnvironmentFault if a loaded library or ONNX parser of `flavour` does not belong to `version` of its
    distribution (rules 1 to 3)."""
    libraries = library_files(flavour.library)
    allowed = allowed_versions(flavour, version)
    for library in libraries:
        found = library_version(library)
        if found is not None and not any(versions_agree(found, each) for each in allowed):
            version_text = ".".join(map(str, found))
            raise EnvironmentFault(
                f"{flavour.name} {version} was planned, but {library} is loaded, which is {version_text}",
                hint=f"{_remedy_hint(library)}, or install the toolchain of that version: "
                f"pip install '{flavour.distribution}=={'.'.join(map(str, found[:3]))}.*'",
            )
    for parser in library_files(flavour.parser_library):
        numbers = _version_in_name(parser)
        if len(numbers) > 1 and any(versions_agree(numbers, each) for each in allowed):
            continue
        if len(numbers) > 1 or (libraries and parser.parent not in {library.parent for library in libraries}):
            problem = (
                ".".join(map(str, numbers)) if len(numbers) > 1 else f"not the parser in the folder of {libraries[0]}"
            )
            raise EnvironmentFault(
                f"the ONNX parser of {flavour.name} {version} was planned, but {parser} is loaded, which is {problem}",
                hint=f"{_remedy_hint(parser)}, or reinstall the toolchain: pip install --force-reinstall "
                f"'{flavour.distribution}=={version}'",
            )


def mapped_files() -> list[Path]:
    """Return the files that this process has mapped into its memory, each once. Empty if `_MAPS_FILE` cannot be read."""
    try:
        # Not `splitlines`, which would split paths: the file escapes only the line separator "\n" in them.
        lines = os.fsdecode(_MAPS_FILE.read_bytes()).split("\n")
    except OSError:
        return []
    names = (line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return [Path(name.removesuffix(_DELETED_SUFFIX)) for name in dict.fromkeys(names) if name.startswith("/")]


def library_version(library: Path) -> tuple[int, ...] | None:
    """Return the version that a loaded library reports: major, minor, patch, and the build number if the library has it.

    Returns None if the library is not loaded, or has no function `getInferLibVersion`."""
    try:
        opened = ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # fails if it is not loaded yet
        number = int(opened.getInferLibVersion())
    except (OSError, AttributeError):
        return None
    # The number is 8601 in TensorRT 8.6.1, 100300 in TensorRT 10.3.0, and 10701 in TensorRT-RTX 1.7.1.
    major, rest = divmod(number, 1000 if number < 10000 else 10000)
    version = major, *divmod(rest, 100)
    try:
        return *version, int(opened.getInferLibBuildVersion())
    except AttributeError:
        return version


def library_files(stem: str) -> list[Path]:
    """Return the mapped files of a library. `stem` is the file name without the version, such as ``libnvinfer.so``."""
    return [file for file in mapped_files() if file.name == stem or file.name.startswith(f"{stem}.")]


def allowed_versions(flavour: Flavour, version: str) -> set[tuple[int, ...]]:
    """Return the versions that the libraries in `version` of the flavour's distribution may report."""
    return {version_numbers(name) for name in (version, flavour.library_versions.get(version, version))}


def _version_in_name(file: Path) -> tuple[int, ...]:
    """Return the numbers at the end of a file name: ``libnvonnxparser.so.10.3.0`` → (10, 3, 0)."""
    match = re.search(r"\.so\.([0-9.]+)$", file.name)
    return version_numbers(match[1]) if match else ()


def versions_agree(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two versions agree in the numbers that both have (rule 3)."""
    shared = min(len(left), len(right))
    return left[:shared] == right[:shared]


def _remedy_hint(library: Path) -> str:
    folders = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    entry = next((entry for entry in folders if os.path.realpath(entry) == str(library.parent)), None)
    if entry is not None:
        return f"take {entry} out of LD_LIBRARY_PATH"
    return "put the folder of the planned library first in LD_LIBRARY_PATH"
