"""The output `package`: the directory that `trtbuild.load` opens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trtbuild.core.packages.package_index import SCHEMA
from trtbuild.core.packages.package_reading import check_path
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record, is_digest
from trtbuild.driver.outputs.files import OutputFile
from trtbuild.regular import read_regular

INDEX = "index.json"
NAMES = "names.json"

Index = Mapping[str, Any]


def check_names(index: Index) -> None:
    """Check that all file names of an index stay inside the package, and that all digests are valid.

    Raises ValueError, KeyError, TypeError or AttributeError.
    """
    for name, entry in index["files"].items():
        parts = name.split("/")
        if ".." in parts or "" in parts or "\0" in name or not is_digest(entry["sha256"]):
            raise ValueError(f"not a file of a package: {name!r:.80}")


def files(root: str, index: Index, record: Record) -> list[OutputFile]:
    """Return all files that the index names, and then the index."""
    base = str(PurePosixPath(root) / "_")[:-1]  # joined by hand: there may be thousands of files
    found = [OutputFile(f"{base}{path}", entry["sha256"]) for path, entry in sorted(index["files"].items())]
    if NAMES not in index["files"]:  # packages of step version 1
        found.append(OutputFile(f"{base}{NAMES}", record.outputs["names"].sha256))
    found.append(OutputFile(f"{base}{INDEX}", record.outputs["index"].sha256, turn=1))
    return found


def before(root: Path, files: Sequence[OutputFile], last: Recipe | None) -> list[Path]:
    """Return the files that the index of the existing package names; empty if there is no valid index."""
    try:
        index = json.loads(read_regular(root / INDEX))
        if index["schema"] != SCHEMA:
            return []
        return [root / check_path(name) for name in index["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
