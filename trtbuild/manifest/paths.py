"""Convert the paths in manifests to names.

A name is a path relative to the project, with ``/`` between its parts. So it stays valid if the project is moved. A name
that leads out of the project begins with ``..``. Symbolic links in a name are not resolved.
"""

# ruff: noqa: PTH100, PTH112, PTH114, PTH116, PTH117, PTH208
# Paths are strings here, because `Path` normalizes the written text, and `Path.resolve` follows links.

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest
from trtbuild.manifest.yaml_text.problems import Problems


class ProjectPaths:
    """Converts paths to names, and names to paths, for one project."""

    def __init__(self, project: Path) -> None:
        self._project = os.path.abspath(project)
        # The system follows a link before it applies "..", but `normpath` does not. A real path contains no links, so both
        # find the same parent.
        self.root = os.path.realpath(project)

    def name_of(self, path_text: str, folder: str = ".") -> str:
        """The name of a path. The path is absolute, or relative to the folder with the name `folder`."""
        if not os.path.isabs(path_text):
            return posixpath.normpath(posixpath.join(folder, path_text))
        path = os.path.normpath(path_text)
        for base in (self._project, self.root):
            if path == base or path.startswith(base.rstrip("/") + "/"):
                return Path(os.path.relpath(path, base)).as_posix()
        return Path(os.path.relpath(path, self.root)).as_posix()

    def absolute(self, name: str) -> str:
        """The absolute path of a file on this machine, from its name."""
        return os.path.normpath(os.path.join(self.root, name))

    def identity(self, name: str) -> str:
        """The absolute path without links. It is equal for all names of one file."""
        return os.path.realpath(self.absolute(name))


def folder_of(name: str) -> str:
    """The name of the folder of a file; "." for the project."""
    return posixpath.dirname(name) or "."


def import_roots(name: str) -> tuple[str, ...]:
    """The folders in which a manifest's Python modules are searched: its folder, then the parents up to the project.

    For a manifest outside the project, only its folder is searched."""
    folder = folder_of(name)
    if is_outside(folder):
        return (folder,)
    parts = [] if folder == "." else folder.split("/")
    return tuple("/".join(parts[:count]) or "." for count in range(len(parts), -1, -1))


def is_outside(name: str) -> bool:
    """Whether a name leads out of the project."""
    return name == ".." or name.startswith("../") or posixpath.isabs(name)


def unreadable_reason(path: str) -> tuple[str, str | None] | None:
    """The reason why the file at `path` cannot be read, and a hint or None. For a readable file, returns None."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _os_error_reason(path, error)
    if stat.S_ISDIR(mode):
        return "it is a directory", "name a file in it"
    if not stat.S_ISREG(mode):
        return "it is not a regular file", None
    if not os.access(path, os.R_OK):
        return "permission denied", f"chmod +r {path}"
    return None


def _os_error_reason(path: str, error: OSError) -> tuple[str, str | None]:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ("it is a link to nothing", None) if os.path.islink(path) else ("no such file", _path_hint(path))
    return (error.strerror or str(error)).lower(), None


def _path_hint(path: str) -> str | None:
    folder, name = os.path.split(path)
    if name.startswith("~") or "/~" in path or "$" in path:
        return "~ and $VARIABLES are not expanded"
    try:
        entries = os.listdir(folder)
    except OSError:
        parent = os.path.dirname(folder)
        missing = folder
        while parent and not os.path.isdir(parent) and parent != os.path.dirname(parent):
            missing, parent = parent, os.path.dirname(parent)
        return f"there is no directory {os.path.basename(missing)!r}"
    similar = nearest(name, sorted(entries))
    return f"did you mean {similar!r}?" if similar else None


def check_readable(paths: ProjectPaths, name: str, noun: str, origin: Origin, problems: Problems) -> bool:
    """Whether a file can be read. If not, its problem is added. `noun` names the file in the message."""
    problems.files.append(name)
    reason = unreadable_reason(paths.absolute(name))
    if reason:
        problems.add(origin, f"{noun} {name!r} cannot be read: {reason[0]}", reason[1])
    return reason is None
