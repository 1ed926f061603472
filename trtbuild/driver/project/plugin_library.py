"""Check that the library of a model's plugins fits the model's targets, and compute its digest.

The library is not loaded here. Its ELF header names its processor, and its dynamic section names the libraries of TensorRT
that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trtbuild.core.model.spec import Model, Target, ToolchainName
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.elf import SharedLibrary, read_shared_library
from trtbuild.errors import ManifestErrors, Problem
from trtbuild.store.digests.fingerprint import FileDigests

#: Flavour → the libraries of TensorRT that a library of plugins may need, with their major version.
_LIBRARIES: Mapping[ToolchainName, re.Pattern[str]] = {
    "tensorrt": re.compile(r"libnvinfer(?:_plugin)?\.so\.([0-9]+)"),
    "tensorrt-rtx": re.compile(r"libtensorrt_rtx\.so\.([0-9]+)"),
}


def read_plugin_library(
    project: Path, model: Model, versions: Mapping[Target, str], digests: FileDigests
) -> Output | None:
    """The digest and the size of the library; None if the model has no library.

    `versions` maps targets to the exact versions of their toolchains. Raises ManifestErrors if the file cannot be read or
    is not a shared library, or if a target cannot use it."""
    name = None if model.plugins is None else model.plugins.library
    if name is None:
        return None
    path = project / name
    try:
        with path.open("rb") as file:

            def read(offset: int, size: int) -> bytes:
                file.seek(offset)
                return file.read(size)

            library = read_shared_library(read)
            size = path.stat().st_size
    except OSError as error:
        raise _problem(model, f"cannot be read: {error.strerror or error}", "correct `plugins.library`") from error
    if library is None:
        raise _problem(model, "is not a shared library (ELF, 64 bits)", "name the `.so` file with the plugins")
    for target in model.targets:
        _check(library, model, target, versions[target])
    sha256 = digests.sha256(str(path))
    if sha256 is None:
        raise _problem(model, "is missing", "create it, or correct `plugins.library`")
    return Output(sha256, size)


def _check(library: SharedLibrary, model: Model, target: Target, version: str) -> None:
    """Raise ManifestErrors if the library needs another processor or another TensorRT than `target` has."""
    processor = target.platform.partition("-")[2]
    if library.processor != processor:
        raise _problem(
            model,
            f"is for {library.processor}, and the target {target.name!r} runs on {target.platform}",
            f"build the library for {processor}, or leave the target out",
        )
    major = version.partition(".")[0]
    for needed in library.needed:
        for flavour, pattern in _LIBRARIES.items():
            found = pattern.fullmatch(needed)
            if found is not None and (flavour != target.toolchain or found[1] != major):
                raise _problem(
                    model,
                    f"needs {needed}, and the target {target.name!r} has {target.toolchain} {version}",
                    f"build the library with the headers of {target.toolchain} {version}, or leave the target out",
                )


def _problem(model: Model, text: str, hint: str) -> ManifestErrors:
    place = model.places.get("plugins.library", model.places.get("plugins", model.origin))
    library = None if model.plugins is None else model.plugins.library
    text = f"the library {library!r} of the plugins of model {model.name!r} {text}"
    return ManifestErrors([Problem(place.file, place.line, place.column, text, hint)])
