"""Single files of outputs: compare, write and remove them.

Rules
1. A file is written only if its content differs, so that `make` sees correct times. The written file is a copy, never a
   link to the store's file, because an edit of the output must not change the cache.
2. Files are written in the order of their turns (`OutputFile.turn`). A file that names other files has a later turn than
   these files. Each file is written atomically, and all files of a turn are on disk before the next turn begins. So at any
   moment, and after a loss of power, a reader finds the old output, the new output, or an index whose digests do not match.
   Files of one turn are written in parallel, so that their syncs overlap.
3. A file of an earlier build's output is removed if it is not in this build's output. The existing index of a package, or
   the listing of a Triton model, names the files of the earlier build. Plans and ``.pt2`` files have no index: their names
   follow from the package's last recipe. Other files in the directory stay.
4. The content of an output depends only on the package's index and on one record: the record of the package or, for `pt2`,
   the record of the ``.pt2`` files. So a build that finds nothing to do knows the digests of the output's files without
   reading other files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trtbuild.core.recipes.ports import FileStamp, Store

#: Receives paths. Returns path → SHA-256, or None for a missing file. Raises OSError for an unreadable file.
Digests = Callable[[Sequence[str]], Mapping[str, "str | None"]]
#: Receives path → (SHA-256, `FileStamp`) of the written files, so that they need not be read to know their digests.
NoteWritten = Callable[[Mapping[str, tuple[str, FileStamp]]], None]

#: The number of files that are written in parallel.
_WRITERS = min(4, (os.cpu_count() or 1) + 1)


@dataclass(frozen=True)
class OutputFile:
    """One file of an output. `path` is relative to the project.

    The content is `data`, or a blob of the store if `data` is None. Files of a lower `turn` are written first.
    """

    path: str
    sha256: str
    turn: int = 0
    data: bytes | None = field(default=None, compare=False, repr=False)


def generated_file(path: str, data: bytes, turn: int = 0) -> OutputFile:
    """Return a file whose bytes `data` are not in the store."""
    return OutputFile(path, hashlib.sha256(data).hexdigest(), turn, data)


def folder_prefix(root: str) -> str:
    """Return the start of all paths below `root`, such as ``dist/vit/``. It is empty for the project's directory."""
    path = PurePosixPath(root)
    return f"{path}/" if path.parts else ""


def changed_files(project: Path, files: Sequence[OutputFile], digests: Digests) -> list[OutputFile]:
    """Return the files that are missing in the project, or differ there. Raises OSError for an unreadable file."""
    paths = [f"{project}/{file.path}" for file in files]
    actual = digests(paths)
    return [file for file, path in zip(files, paths, strict=True) if actual[path] != file.sha256]


def write(project: Path, files: Sequence[OutputFile], store: Store, note_written: NoteWritten) -> None:
    """Write files in parallel. Raises BlobMissing, EntryCorrupt, StoreUnavailable, OSError."""
    from trtbuild.store.local.publication import (
        copy_atomically,
    )  # imported here, because `trtbuild plan` writes no files

    written: dict[str, tuple[str, FileStamp]] = {}

    def write_one(file: OutputFile) -> None:
        target = project / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.data is None:
            stamp = store.copy_to(file.sha256, str(target))
        else:
            stamp = copy_atomically([memoryview(file.data)], str(target))
        if stamp is not None:
            written[str(target)] = (file.sha256, stamp)

    with ThreadPoolExecutor(_WRITERS) as pool:
        try:
            for _ in pool.map(write_one, files):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            note_written(written)


def remove(path: Path, root: Path) -> None:
    """Remove a file, and then the empty directories between it and `root`. Errors of the file system are ignored."""
    with contextlib.suppress(OSError):
        path.unlink()
        parent = path.parent
        while parent != root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
