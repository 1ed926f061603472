"""Putting results where users want them: package directories and raw plans.

Rules
1. A file is written only when its content differs, so `make` sees honest times.
2. Files first, the index last, each atomically: a reader finds the old package or the new one, or an index whose
   digests do not match yet, never a file that looks right and is not.
3. What an earlier build put there and this one does not is removed: what the index that is there names, and for raw
   plans, which have no index, the engines of the package's last recipe. Other files in the directory are left alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtbuild.core.packaging import SCHEMA
from trtbuild.core.ports import Store
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Record

INDEX = "index.json"

Digest = Callable[[Path], "str | None"]


@dataclass(frozen=True)
class OutputFile:
    """One file of an output: its path relative to the project, and what it must hold."""

    path: str
    sha256: str


def output_files(kind: str, root: str, index: Mapping[str, Any], record: Record) -> list[OutputFile]:
    """The files of one output of a model, the package's index last."""
    base = PurePosixPath(root)
    files = [
        OutputFile(str(base / path), entry["sha256"])
        for path, entry in sorted(index["files"].items())
        if kind == "package" or path.startswith("engines/")
    ]
    if kind == "plans":
        return [
            OutputFile(str(base / PurePosixPath(file.path).relative_to(base / "engines")), file.sha256)
            for file in files
        ]
    files.append(OutputFile(str(base / "names.json"), record.outputs["names"].sha256))
    files.append(OutputFile(str(base / INDEX), record.outputs["index"].sha256))
    return files


def in_place(project: Path, files: list[OutputFile], digest: Digest) -> bool:
    """Whether every file is there with the right content."""
    try:
        return all(digest(project / file.path) == file.sha256 for file in files)
    except OSError:  # something else is there, or it cannot be read: writing it says what is wrong
        return False


def write_output(
    project: Path,
    kind: str,
    root: str,
    files: list[OutputFile],
    store: Store,
    digest: Digest,
    last: Recipe | None = None,
) -> bool:
    """Bring one output up to date; `last` is the recipe that its package had when it was written before. Returns
    whether anything was written. Raises BlobMissing."""
    old = _named_before(project / root) if kind == "package" else _plans_before(project / root, last)
    written = False
    for file in files:
        target = project / file.path
        if digest(target) == file.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        store.copy_to(file.sha256, str(target))
        written = True
    wanted = {project / file.path for file in files}
    for path in old:
        if path not in wanted:
            _remove(path, project / root)
    return written


def _named_before(root: Path) -> list[Path]:
    """The files that the package that is there lists."""
    try:
        index = json.loads((root / INDEX).read_bytes())
        if index["schema"] != SCHEMA:
            return []
        names = [PurePosixPath(name) for name in index["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [root / name for name in names if not name.is_absolute() and ".." not in name.parts]


def _plans_before(root: Path, last: Recipe | None) -> list[Path]:
    """The raw plans of the package with the recipe `last`."""
    engines = dict(last.parts).get("engines") if last is not None else None
    names = [str(name).rpartition("@") for name in engines] if isinstance(engines, Mapping) else []
    return [root / target / f"{partition}.plan" for partition, _, target in names]


def _remove(path: Path, root: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        parent = path.parent
        while parent != root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
