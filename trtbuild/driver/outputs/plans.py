"""The output `plans`: engines as files ``<root>/<target>/<partition>.plan``, for trtexec and other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs.files import OutputFile, folder_prefix

_ENGINE_FOLDER = "engines/"
_PLAN_SUFFIX = ".plan"


def files(root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return the plans among the files of the package."""
    base = folder_prefix(root)
    return [
        OutputFile(f"{base}{path.removeprefix(_ENGINE_FOLDER)}", sha256)
        for path, sha256 in sorted(package.files.items())
        if path.startswith(_ENGINE_FOLDER) and path.endswith(_PLAN_SUFFIX)
    ]


def previous_files(root: Path, files: Sequence[OutputFile], last_recipe: Recipe | None) -> list[Path]:
    """Return the plans of the package with the recipe `last_recipe`."""
    engines = dict(last_recipe.parts).get("engines") if last_recipe is not None else None
    names = [str(name).rpartition("@") for name in engines] if isinstance(engines, Mapping) else []
    return [root / target / f"{partition}{_PLAN_SUFFIX}" for partition, _, target in names]
