"""Write the outputs of a model: packages, plans (engines as files), ``.pt2`` files, Triton repositories.

Each kind of output is one module, or a folder of modules (`triton`). `files.py` has the rules for writing. This folder
imports no other folder of `driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trtbuild.core.packages.package_files import PackageFiles
from trtbuild.core.recipes.ports import Store
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.outputs import pt2
from trtbuild.driver.outputs.files import Digests, NoteWritten, OutputFile, changed_files, remove, write
from trtbuild.driver.outputs.kinds import KINDS

__all__ = ["pt2", "Digests", "NoteWritten", "OutputFile", "is_in_place", "output_files", "write_output"]


def output_files(kind: str, root: str, package: PackageFiles, record: Record) -> list[OutputFile]:
    """Return the files of one output of a model, in the order in which they are written. Raises as `Kind.files` does."""
    return sorted(KINDS[kind].files(root, package, record), key=lambda file: file.turn)


def is_in_place(project: Path, files: Sequence[OutputFile], digests: Digests) -> bool:
    """Whether every file exists and has the right content."""
    try:
        return not changed_files(project, files, digests)
    except OSError:  # for example, the path is a directory. The error is reported when the file is written
        return False


def write_output(
    project: Path,
    kind: str,
    root: str,
    files: Sequence[OutputFile],
    store: Store,
    digests: Digests,
    note_written: NoteWritten,
    last_recipe: Recipe | None = None,
    refuse: Callable[[Sequence[OutputFile]], None] = lambda changed: None,
) -> bool:
    """Bring one output up to date. Return whether a file was written.

    `last_recipe` is the recipe of the package in the previous build. `refuse` receives the files that will be written, and
    may raise an error. Raises BlobMissing, EntryCorrupt, StoreUnavailable, OSError.
    """
    old_paths = KINDS[kind].previous_files(project / root, files, last_recipe)
    outdated = changed_files(project, files, digests)
    refuse(outdated)
    for turn in sorted({file.turn for file in outdated}):
        write(project, [file for file in outdated if file.turn == turn], store, note_written)
    new_paths = {project / file.path for file in files}
    for path in old_paths:
        if path not in new_paths:
            remove(path, project / root)
    return bool(outdated)
