"""Results where users want them: package directories, raw plans, model repositories. One module for each kind.

In: a package's record and index. Out: files in the project. `files` has the rules.
Uses no other room.
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
