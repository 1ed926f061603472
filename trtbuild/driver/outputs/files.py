"""Single files of outputs: what each must hold, which differ, and writing and removing them.

Rules
1. A file is written only when its content differs, so `make` sees honest times. It is a copy, never a link to the
   store's file: who edits an output in place must not edit the cache.
2. Files in the order of their turns, what names others last (`OutputFile.turn`), each atomically: a reader finds the old
   output or the new one, or an index whose digests do not match yet, never a file that looks right and is not. Each is
   durable before the next turn begins to name it, after a loss of power too; those of one turn are written at once, so
   their syncs wait beside one another.
3. What an earlier build put there and this one does not is removed: what the index that is there names, and for raw
   plans, which have no index, the engines of the package's last recipe. Other files in the directory are left alone.
4. What is written is a function of the package's index and record alone, and its digests are known without reading
   anything else: the null build goes by them. (`pt2` has a record of its own in the place of the package's.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.core.recipes.ports import FileStamp, Store

#: SHA-256 of many files at once: by path, None where there is no such file. Raises OSError for what cannot be read.
Digests = Callable[[Sequence[str]], Mapping[str, "str | None"]]
#: Is told the SHA-256 and stamp of each file that was written, by path.
Learn = Callable[[Mapping[str, tuple[str, FileStamp]]], None]

# Files that are written at once.
_WRITERS = min(4, (os.cpu_count() or 1) + 1)


@dataclass(frozen=True)
class OutputFile:
    """One file of an output: its path relative to the project, and what it must hold.

    Its bytes are a blob of the store, unless `data` has them. Files of a later `turn` name those of earlier ones.
    """

    path: str
    sha256: str
    turn: int = 0
    data: bytes | None = field(default=None, compare=False, repr=False)


def made(path: str, data: bytes, turn: int = 0) -> OutputFile:
    """A file whose bytes are made of the index, and are not in the store."""
    return OutputFile(path, hashlib.sha256(data).hexdigest(), turn, data)


def differing(project: Path, files: Sequence[OutputFile], digests: Digests) -> list[OutputFile]:
    """Those files that are not there, or have other content. Raises OSError for what cannot be read."""
    paths = {file: f"{project}/{file.path}" for file in files}
    found = digests(list(paths.values()))
    return [file for file in files if found[paths[file]] != file.sha256]


def write(project: Path, files: Sequence[OutputFile], store: Store, learn: Learn) -> None:
    """Write files, several at once. Raises BlobMissing, EntryCorrupt, StoreUnavailable, or OSError."""
    from trtbuild.store.local.publication import copy_atomically  # here: a plan looks at files, and writes none

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
            learn(written)


def remove(path: Path, root: Path) -> None:
    """Remove a file, and the directories below `root` that it leaves empty."""
    with contextlib.suppress(OSError):
        path.unlink()
        parent = path.parent
        while parent != root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
