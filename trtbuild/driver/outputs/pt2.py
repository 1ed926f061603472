"""The output `pt2`: a file that ``torch.export.load`` opens, for each target.

For one target the file is ``<name>.pt2``. For several targets the files are ``<name>.<target>.pt2``, because the
partitions of the targets may differ.

The bytes depend on the package's index and on the version of PyTorch. So the files are blobs of a separate record, and
`recipe` returns its recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.packages.exported_file import exported_file_paths
from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.recipes import keys
from trtbuild.core.recipes.lookup_recipes import exported_file_with_any_torch
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs.files import OutputFile


def recipe(package: Record, versions: Mapping[str, str] | None) -> Recipe:
    """Return the recipe of the ``.pt2`` files of a package. `versions` maps distributions to installed versions.

    `versions` is None if torch is not installed, or if its version is not the locked one. The result is then the recipe of
    files that any version of torch has written.
    """
    exact_recipe = keys.exported_file(
        package.outputs["index"].sha256, None if versions is None else versions.get("torch")
    )
    return exported_file_with_any_torch(exact_recipe) if versions is None else exact_recipe


def files(root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return the file of each target."""
    paths = exported_file_paths(root, package.targets)
    return [OutputFile(path, record.outputs[f"pt2:{target}"].sha256) for target, path in paths.items()]


def previous_files(root: Path, files: Sequence[OutputFile], last_recipe: Recipe | None) -> list[Path]:
    """Return the ``.pt2`` files of the package with the recipe `last_recipe`."""
    targets = dict(last_recipe.parts).get("targets") if last_recipe is not None else None
    if not isinstance(targets, Mapping):
        return []
    return [Path(path) for path in exported_file_paths(str(root), targets).values()]
