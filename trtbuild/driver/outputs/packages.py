"""The output `package`: the directory that `trtbuild.load` opens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.packages.package_index import SCHEMAS
from trtbuild.core.packages.package_reading import check_path
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs.files import OutputFile, folder_prefix
from trtbuild.regular import read_regular

INDEX = "index.json"
NAMES = "names.json"


def files(root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return all files of the package. Its index is the last."""
    return files_below(root, package.files, record)


def files_below(root: str, digests: Mapping[str, str], record: Record) -> list[OutputFile]:
    """Return the files of a package below `root`. `digests`: path in the package → SHA-256."""
    base = folder_prefix(root)  # a string, because it would take long to join thousands of `Path` objects
    result = [OutputFile(f"{base}{path}", sha256) for path, sha256 in sorted(digests.items())]
    if NAMES not in digests:  # the index of an older package does not list it
        result.append(OutputFile(f"{base}{NAMES}", record.outputs["names"].sha256))
    result.append(OutputFile(f"{base}{INDEX}", record.outputs["index"].sha256, turn=1))
    return result


def previous_files(root: Path, files: Sequence[OutputFile], last_recipe: Recipe | None) -> list[Path]:
    """Return the files that the existing index names, or an empty list if there is no valid index."""
    try:
        index = json.loads(read_regular(root / INDEX))
        if index["schema"] not in SCHEMAS:
            return []
        return [root / check_path(name) for name in index["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
