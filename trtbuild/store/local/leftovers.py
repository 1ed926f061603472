"""Removes leftovers from a store: unfinished files, locks and sessions of dead processes, and old quarantined entries.

Only files with the names that a store gives are leftovers. `$TRTBUILD_CACHE_DIR` may name a directory that the user has for
other things, too, and ``tmp/`` in this directory may be the user's.
"""

# Paths are strings here, as in the rest of the store.
# ruff: noqa: PTH106, PTH108, PTH112
from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

from trtbuild.store.local import locks
from trtbuild.store.local.layout import Layout, list_folder

#: The names of the files of a process in ``tmp/`` and ``sessions/`` (`Layout.fresh_path`), of the locks of keys, and of
#: entries in quarantine.
_PROCESS_FILE = re.compile(r"[0-9]+-[0-9a-f]{24}")
_KEY_LOCK = re.compile(r"[0-9a-f]{64}")
_QUARANTINED = re.compile(r"(?:cas|ac)-[0-9a-f]{64}-[0-9a-f]{8}")

#: The age in seconds from which unlocked files in ``tmp/`` are removed.
UNFINISHED_AGE_S = 3600.0


def session_starts(layout: Layout) -> Iterator[int]:
    """The starts (mtime, ns) of the live sessions. The caller holds the store-wide lock exclusively."""
    for file in list_folder(layout.sessions):
        try:
            start_ns = file.stat().st_mtime_ns
        except FileNotFoundError:
            continue
        descriptor = locks.lock_if_abandoned(file.path)
        if descriptor is None:
            yield start_ns
        else:
            os.close(descriptor)


def remove_leftovers(layout: Layout, start_ns: int, quarantine_age_s: float) -> int:
    """Remove old unlocked files in ``tmp/``, unlocked files in ``locks/`` and ``sessions/`` (except the locks ``store`` and
    ``records``), and old entries in quarantine. Ages are computed at `start_ns`, the start of the collection. Returns the
    number of removed files."""
    removed = 0
    for folder, name, age_s in (
        (layout.tmp, _PROCESS_FILE, UNFINISHED_AGE_S),
        (layout.locks, _KEY_LOCK, 0.0),
        (layout.sessions, _PROCESS_FILE, 0.0),
    ):
        for file in list_folder(folder):
            if name.fullmatch(file.name) and _is_older(file, start_ns, age_s):
                removed += _remove_abandoned(file.path)
    for file in list_folder(layout.quarantine):
        if _QUARANTINED.fullmatch(file.name) and _is_older(file, start_ns, quarantine_age_s):
            with contextlib.suppress(OSError):
                if file.is_dir(follow_symlinks=False):
                    shutil.rmtree(file.path)
                else:
                    os.unlink(file.path)
                removed += 1
    return removed


def _remove_abandoned(path: str) -> bool:
    descriptor = locks.lock_if_abandoned(path)
    if descriptor is None:
        return False
    try:
        if os.path.isdir(path):  # a leftover of an interrupted Layout.make_folder
            os.rmdir(path)
        else:
            # The file is locked. A process that waits for the lock notices the removal (locks.py, rule 3).
            os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_older(file: os.DirEntry[str], start_ns: int, age_s: float) -> bool:
    try:
        return file.stat(follow_symlinks=False).st_mtime_ns <= start_ns - int(age_s * 1e9)
    except FileNotFoundError:
        return False
