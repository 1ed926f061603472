"""Prove that a file or directory is unchanged, and that each later change is going to be noticed.

The *identity* of a file is its size, times and inode (`trtbuild.null_build.identity`). Less than one tick of the file
system's clock after an edit, the identity proves nothing, because another edit may leave the same times.
"""

# Paths are strings here, as in a snapshot, the file that `trtbuild.null_build` checks.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import stat
import time

from trtbuild import null_build
from trtbuild.store.digests.fingerprint import FileDigests

#: The resolutions of change times. A tick of the kernel is at most 10 ms, half of the first value. A tick of FAT is 2 s.
_FINE_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000


class Unsettled(Exception):
    """A fact is not certain, so no snapshot can be written."""


def verified_stat(path: str, expected: str | None, known: tuple[str, os.stat_result] | None) -> os.stat_result:
    """Return the stat of a file with the digest `expected`. If `expected` is None, any content is accepted.

    Each later edit of the file changes this stat. `known` is the result of `FileDigests.known_digests` for the file.
    Raises Unsettled."""
    if known is not None and known[0] == expected:
        return known[1]
    status, now_ns = os.stat(path), time.time_ns()
    require(stat.S_ISREG(status.st_mode))
    if not is_settled(status, now_ns):
        require(_tick_ns(status) == _FINE_TICK_NS)  # it would take too long to wait for a coarse tick
        time.sleep(2 * _FINE_TICK_NS / 1e9)
        status, now_ns = os.stat(path), time.time_ns()
        require(is_settled(status, now_ns))
    require(expected is None or FileDigests(None).sha256(path) == expected)
    after = os.stat(path)
    require(null_build.identity(after) == null_build.identity(status))
    return after


def is_settled(status: os.stat_result, at_ns: int) -> bool:
    """Whether every edit after the time `at_ns` gives the file another change time."""
    return status.st_ctime_ns + _tick_ns(status) <= at_ns


def _tick_ns(status: os.stat_result) -> int:
    # a time in whole milliseconds may come from a file system with coarse times, such as FAT
    return _COARSE_TICK_NS if status.st_ctime_ns % 1_000_000 == 0 else _FINE_TICK_NS


def require(certain: bool) -> None:
    """Raise Unsettled if a fact is not certain."""
    if not certain:
        raise Unsettled
