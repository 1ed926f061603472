"""The pins of dependencies: the states that they have at their first use (rule 1 of `recording`)."""

# Paths are strings here: there are thousands of them.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import stat
import time
from typing import Any

from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY
from trtbuild.stages.trace.user_code.observe import SPECIAL, file_digest

#: If a file changed less than this time before it was read, the next change may leave its times unchanged.
_GRANULARITY_S = 2.0


def make_pin(path: str) -> Any:
    """The pin of a path: its `status_pin` if it is a file that has not changed lately, otherwise its observed state."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    if stat.S_ISDIR(status.st_mode):
        return DIRECTORY
    if not stat.S_ISREG(status.st_mode):
        return SPECIAL
    if time.time() - max(status.st_mtime, status.st_ctime) < _GRANULARITY_S:
        return file_digest(path) or ABSENT
    return status_pin(path)


def status_pin(path: str) -> tuple[int, ...] | None:
    """The size, times, inode and device of a file; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
