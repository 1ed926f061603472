"""The output `plans`: the engines as files ``<root>/<target>/<partition>.plan``, for trtexec and other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs.files import OutputFile

_ENGINES = "engines/"
_SUFFIX = ".plan"


def files(root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return the plans among the files of the package."""
    base = str(PurePosixPath(root) / "_")[:-1]
    return [
        OutputFile(f"{base}{path.removeprefix(_ENGINES)}", sha256)
        for path, sha256 in sorted(package.files.items())
        if path.startswith(_ENGINES) and path.endswith(_SUFFIX)
    ]


def before(root: Path, files: Sequence[OutputFile], last: Recipe | None) -> list[Path]:
    """Return the raw plans of the package with the recipe `last`."""
    engines = dict(last.parts).get("engines") if last is not None else None
    names = [str(name).rpartition("@") for name in engines] if isinstance(engines, Mapping) else []
    return [root / target / f"{partition}{_SUFFIX}" for partition, _, target in names]
