"""Putting results where users want them: package directories and raw plans.

Rules
1. A file is written only when its content differs, so `make` sees honest times. It is a copy, never a link to the
   store's file: who edits an output in place must not edit the cache.
2. Files first, the index last, each atomically: a reader finds the old package or the new one, or an index whose
   digests do not match yet, never a file that looks right and is not. Each is durable before the next begins to name
   it, after a loss of power too; several are written at once, so their syncs wait beside one another.
3. What an earlier build put there and this one does not is removed: what the index that is there names, and for raw
   plans, which have no index, the engines of the package's last recipe. Other files in the directory are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtbuild.core.packaging import SCHEMA
from trtbuild.core.ports import FileStamp, Store
from trtbuild.core.recipe import Recipe
from trtbuild.core.record import Record, is_digest

INDEX = "index.json"
_ENGINES = "engines/"

#: SHA-256 of many files at once: by path, None where there is no such file. Raises OSError for what cannot be read.
Digests = Callable[[Sequence[str]], Mapping[str, "str | None"]]
#: Is told the SHA-256 and stamp of each file that was written, by path.
Learn = Callable[[Mapping[str, tuple[str, FileStamp]]], None]

# Files that are written at once.
_WRITERS = min(4, (os.cpu_count() or 1) + 1)


@dataclass(frozen=True)
class OutputFile:
    """One file of an output: its path relative to the project, and what it must hold."""

    path: str
    sha256: str


def output_files(kind: str, root: str, index: Mapping[str, Any], record: Record) -> list[OutputFile]:
    """The files of one output of a model, the package's index last. Raises ValueError, KeyError, TypeError or
    AttributeError for what is no index: it may come from a remote, and names the files that are written."""
    base = str(PurePosixPath(root) / "_")[:-1]  # joined by hand: there may be thousands of files
    named = sorted(index["files"].items())
    for name, entry in named:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name or not is_digest(entry["sha256"]):
            raise ValueError(f"no file of a package: {name!r:.80}")
    if kind == "plans":
        return [
            OutputFile(f"{base}{path.removeprefix(_ENGINES)}", entry["sha256"])
            for path, entry in named
            if path.startswith(_ENGINES)
        ]
    files = [OutputFile(f"{base}{path}", entry["sha256"]) for path, entry in named]
    files.append(OutputFile(f"{base}names.json", record.outputs["names"].sha256))
    files.append(OutputFile(f"{base}{INDEX}", record.outputs["index"].sha256))
    return files


def in_place(project: Path, files: Sequence[OutputFile], digests: Digests) -> bool:
    """Whether every file is there with the right content."""
    try:
        return not _differing(project, files, digests)
    except OSError:  # something else is there, or it cannot be read: writing it says what is wrong
        return False


def write_output(
    project: Path,
    kind: str,
    root: str,
    files: Sequence[OutputFile],
    store: Store,
    digests: Digests,
    learn: Learn,
    last: Recipe | None = None,
) -> bool:
    """Bring one output up to date; `last` is the recipe that its package had when it was written before. Returns
    whether anything was written. Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError."""
    old = _named_before(project / root) if kind == "package" else _plans_before(project / root, last)
    differing = _differing(project, files, digests)
    index = [file for file in differing if kind == "package" and file is files[-1]]
    _write(project, [file for file in differing if file not in index], store, learn)
    _write(project, index, store, learn)
    wanted = {project / file.path for file in files}
    for path in old:
        if path not in wanted:
            _remove(path, project / root)
    return bool(differing)


def _differing(project: Path, files: Sequence[OutputFile], digests: Digests) -> list[OutputFile]:
    paths = {file: f"{project}/{file.path}" for file in files}
    found = digests(list(paths.values()))
    return [file for file in files if found[paths[file]] != file.sha256]


def _write(project: Path, files: Sequence[OutputFile], store: Store, learn: Learn) -> None:
    written: dict[str, tuple[str, FileStamp]] = {}

    def write(file: OutputFile) -> None:
        target = project / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        stamp = store.copy_to(file.sha256, str(target))
        if stamp is not None:
            written[str(target)] = (file.sha256, stamp)

    with ThreadPoolExecutor(_WRITERS) as pool:
        try:
            for _ in pool.map(write, files):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            learn(written)


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
