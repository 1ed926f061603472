"""The conditions under which a watcher may continue.

The project is still the same directory, the code of trtbuild and the installed distributions are unchanged, and enough
memory is free.

``sys.path`` may also contain directories with the user's code, because of ``PYTHONPATH`` or an editable install. Builds and
editors change such a directory all the time. So only two kinds of names in it count: those of distributions, and those of
installed modules. For example, a file ``yaml.py`` may hide a library that a process of the watcher has already loaded.
"""

# Paths are strings here, as in the snapshot of a null build.
# ruff: noqa: PTH112, PTH116, PTH208

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from trtbuild import null_build
from trtbuild.driver.building.execution.memory import MIB, free_bytes
from trtbuild.driver.up_to_date.snapshot_rows import source_files

#: A watcher ends if fewer bytes of memory are free.
LEAST_FREE_BYTES = 512 * MIB

#: Names of directories with installed modules. The library of Python itself is in other directories (`sysconfig`).
_INSTALLATION_NAMES = ("site-packages", "dist-packages", "lib-dynload")


class Conditions:
    """The conditions of one watcher. The present state is compared with the state at the start of the watcher."""

    def __init__(self, project: Path, free: Callable[[], int | None] = free_bytes) -> None:
        self._project = project
        self._free = free
        self._state = self._read()

    def why_to_end(self) -> str | None:
        """Return the reason why the watcher has to end; None if it may continue."""
        free = self._free()
        if free is not None and free < LEAST_FREE_BYTES:
            return f"only {free // MIB} MiB of memory are free"
        for (name, before), (_, now) in zip(self._state.items(), self._read().items(), strict=True):
            if before != now:
                return f"{name} changed"
        return None

    def _read(self) -> dict[str, object]:
        package = os.path.dirname(null_build.__file__)
        return {
            "the project's directory": _state_of(str(self._project), lambda status: (status.st_dev, status.st_ino)),
            "trtbuild itself": [_state_of(path, null_build.identity) for path in sorted(source_files(package))],
            "the installed distributions": _states_of_search_path(null_build.interpreter()[2:]),
        }


def _state_of(path: str, identity: Callable[[os.stat_result], object]) -> object:
    try:
        return path, identity(os.stat(path))
    except OSError:
        return path, None


def _states_of_search_path(entries: Sequence[str]) -> list[object]:
    """The state of each entry of ``sys.path``."""
    user_folders = [path for path in entries if os.path.isdir(path) and not _is_installation(path)]
    installed_modules = {
        _module_name(name) for path in entries if user_folders and path not in user_folders for name in _names_in(path)
    } - {"", "__pycache__"}
    return [
        (path, _relevant_names(path, installed_modules))
        if path in user_folders
        else _state_of(path, null_build.identity)
        for path in entries
    ]


def _is_installation(path: str) -> bool:
    return os.path.basename(path) in _INSTALLATION_NAMES or path in sysconfig.get_paths().values()


def _relevant_names(path: str, installed_modules: set[str]) -> list[str]:
    """The names in a directory with the user's code that may belong to distributions, or that installed modules have."""
    return sorted(
        name
        for name in _names_in(path)
        if name.endswith((".dist-info", ".egg-info")) or _module_name(name) in installed_modules
    )


def _names_in(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _module_name(name: str) -> str:
    return name.partition(".")[0]
