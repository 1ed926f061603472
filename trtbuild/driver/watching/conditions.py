"""The conditions under which a watcher may continue.

The project is still the same directory, the code of trtbuild and the installed distributions are unchanged, and enough
memory is free.
"""

# Paths are strings here, as in the snapshot of a null build.
# ruff: noqa: PTH116

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trtbuild import null_build
from trtbuild.driver.building.execution.memory import MIB, free_bytes
from trtbuild.driver.up_to_date.snapshot_rows import source_files

#: A watcher ends if fewer bytes of memory are free.
LEAST_FREE_BYTES = 512 * MIB


class Conditions:
    """The conditions of one watcher. They are compared with the state at its start."""

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
            "the installed distributions": [  # the entries of sys.path
                _state_of(path, null_build.identity) for path in null_build.interpreter()[2:]
            ],
        }


def _state_of(path: str, identity: Callable[[os.stat_result], object]) -> object:
    try:
        return path, identity(os.stat(path))
    except OSError:
        return path, None
