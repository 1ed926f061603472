"""Paths as they are written in manifests, and as the project names them.

Inside, a path is relative to the project and has ``/`` between its parts, so that a project may move. A path that leads out
of the project keeps its ``..`` parts. Nothing is resolved through symbolic links, except the project itself.
"""

# ruff: noqa: PTH100, PTH112, PTH114, PTH116, PTH117, PTH208
# Paths are text here: `Path` would lose what was written, and follow links where only ".." is taken away.

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path

from trtbuild.core.model.spec import Origin
from trtbuild.core.values.nearest import nearest
from trtbuild.manifest.yaml_text.problems import Problems


class ProjectPaths:
    """The project's directory, and how paths are named in it."""

    def __init__(self, project: Path) -> None:
        self._given = os.path.abspath(project)
        # ".." must lead where the operating system would go, also when the project is reached through a link.
        self.root = os.path.realpath(project)

    def named(self, written: str, folder: str = ".") -> str:
        """The project's name of a path that is written relative to `folder` (itself so named), or absolute."""
        if not os.path.isabs(written):
            return posixpath.normpath(posixpath.join(folder, written))
        path = os.path.normpath(written)
        for base in (self._given, self.root):
            if path == base or path.startswith(base.rstrip("/") + "/"):
                return Path(os.path.relpath(path, base)).as_posix()
        return Path(os.path.relpath(path, self.root)).as_posix()

    def absolute(self, named: str) -> str:
        """Where a path that `named` gave lies on this machine."""
        return os.path.normpath(os.path.join(self.root, named))

    def identity(self, named: str) -> str:
        """One text for all names of one file, links included."""
        return os.path.realpath(self.absolute(named))


def folder_of(named: str) -> str:
    """The folder of a path, "." for the project."""
    return posixpath.dirname(named) or "."


def import_roots(named: str) -> tuple[str, ...]:
    """The folders that ``python:`` sources of a manifest import from: its own and their parents up to the project."""
    folder = folder_of(named)
    if folder.startswith(".."):
        return (folder,)
    parts = [] if folder == "." else folder.split("/")
    return tuple("/".join(parts[:count]) or "." for count in range(len(parts), -1, -1))


def outside(named: str) -> bool:
    """Whether a path leads out of the project."""
    return named == ".." or named.startswith("../") or posixpath.isabs(named)


def why_unreadable(path: str) -> tuple[str, str | None] | None:
    """What keeps `path` from being read as a file, and a hint; None where nothing does."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _os_words(path, error)
    if stat.S_ISDIR(mode):
        return "it is a directory", "name a file in it"
    if not stat.S_ISREG(mode):
        return "it is not a regular file", None
    if not os.access(path, os.R_OK):
        return "permission denied", f"chmod +r {path}"
    return None


def _os_words(path: str, error: OSError) -> tuple[str, str | None]:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ("it is a link to nothing", None) if os.path.islink(path) else ("no such file", _near_file(path))
    words = (error.strerror or str(error)).lower()
    return words[:1].lower() + words[1:], None


def _near_file(path: str) -> str | None:
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
    like = nearest(name, sorted(entries))
    return f"did you mean {like!r}?" if like else None


def check_readable(paths: ProjectPaths, named: str, what: str, origin: Origin, problems: Problems) -> bool:
    """Whether a file can be read; if not, a problem says why and what is near it."""
    found = why_unreadable(paths.absolute(named))
    if found:
        problems.add(origin, f"{what} {named!r} cannot be read: {found[0]}", found[1])
    return found is None
