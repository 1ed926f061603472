"""The kinds of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs import packages, plans, pt2, triton
from trtbuild.driver.outputs.files import OutputFile


class Kind(Protocol):
    """One kind of output: a module with these two functions."""

    def files(self, root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
        """Return the files of the output at the path `root` in the project.

        `record` is the record of the package, or for `pt2` the record of its ``.pt2`` files. Raises PackageError,
        ValueError or KeyError if the index of the package is invalid, and UsageError if this kind does not support a dtype
        of the model.
        """

    def previous_files(self, root: Path, files: Sequence[OutputFile], last_recipe: Recipe | None) -> list[Path]:
        """Return the files that an earlier build wrote to `root`, as far as this kind can find them.

        The caller removes those that are not in `files`. `last_recipe` is the recipe of the package in the earlier build.
        """


#: Name in the manifest's `outputs` → kind.
KINDS: Mapping[str, Kind] = {"package": packages, "plans": plans, "triton": triton, "pt2": pt2}
