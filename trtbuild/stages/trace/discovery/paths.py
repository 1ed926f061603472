"""The form in which records have the paths that user code passes.

A path is absolute. It contains ``..`` only after a symbolic link, because there the system goes to the parent of the
link's target.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH100, PTH109, PTH115

from __future__ import annotations

import os
from typing import Any

#: The number that audit events contain instead of a directory's descriptor, if a path is relative to the present directory.
_NO_DESCRIPTOR = -1


def absolute_path(path: Any) -> str | None:
    """The absolute form of a path that user code passed; None for a file descriptor and for values that are not paths."""
    if isinstance(path, int) or path is None:
        return None
    try:
        text = os.fsdecode(path)
    except (TypeError, ValueError):
        return None
    if "\0" in text or not text:
        return None
    absolute = os.path.abspath(text)
    if os.pardir in text and os.path.realpath(text) != os.path.realpath(absolute):
        return os.path.join(os.getcwd(), text)  # abspath gives another file
    return absolute


def path_and_target(path: str) -> tuple[str, ...]:
    """The absolute path `path`, and the file to which its symbolic links lead, if there are any."""
    target = os.path.realpath(path)
    return (path,) if target == path else (path, target)


def path_in_directory(path: Any, descriptor: int | None) -> Any:
    """The first argument of a function such as ``os.open``, joined to the directory of its argument ``dir_fd``."""
    if descriptor is None or descriptor == _NO_DESCRIPTOR:
        return path
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))
    except OSError:
        return path  # no such descriptor, so the function fails
