"""Putting results where users want them: package directories, raw plans, model repositories. One module per kind.

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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs import pt2
from trtbuild.driver.outputs.files import Digests, Learn, OutputFile, differing, remove, write
from trtbuild.driver.outputs.kinds import KINDS
from trtbuild.driver.outputs.packages import check_names

__all__ = ["pt2", "Digests", "Learn", "OutputFile", "in_place", "output_files", "write_output"]


def output_files(kind: str, root: str, index: Mapping[str, Any], record: Record) -> list[OutputFile]:
    """The files of one output of a model, in the order of their turns. Raises ValueError, KeyError, TypeError or
    AttributeError for what is no index: it may come from a remote, and names the files that are written."""
    check_names(index)
    return sorted(KINDS[kind].files(root, index, record), key=lambda file: file.turn)


def in_place(project: Path, files: Sequence[OutputFile], digests: Digests) -> bool:
    """Whether every file is there with the right content."""
    try:
        return not differing(project, files, digests)
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
    old = KINDS[kind].before(project / root, files, last)
    changed = differing(project, files, digests)
    for turn in sorted({file.turn for file in changed}):
        write(project, [file for file in changed if file.turn == turn], store, learn)
    wanted = {project / file.path for file in files}
    for path in old:
        if path not in wanted:
            remove(path, project / root)
    return bool(changed)
