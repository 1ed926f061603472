"""Versions of installed distributions, read from their metadata alone, and once
as long as the directories they are installed in stay as they are.

`importlib.metadata` gives the same answers; importing it costs as much as planning a dozen models, and so does asking it
for the same few names again and again. Whatever is not quite ordinary (no wheel, two of one name) is left to it.
"""

# Paths are strings here: this is on the way of every command.
# ruff: noqa: PTH116, PTH208
from __future__ import annotations

import os
import re
import sys
from functools import lru_cache

_HEADERS_SIZE = 8 << 10


def installed_version(name: str) -> str | None:
    """The version of the distribution `name`, or None where it is not installed. Nothing of it is imported."""
    return _version(name, tuple([(folder, _changed(folder or ".")) for folder in sys.path]))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=256)
def _version(name: str, path: tuple[tuple[str, int], ...]) -> str | None:
    wanted = _normalized(name)
    for folder, changed in path:
        found = [info for info in _infos(folder or ".", changed) if _normalized(info.partition("-")[0]) == wanted]
        if found:
            version = _header(f"{folder or '.'}/{found[0]}/METADATA") if len(found) == 1 else None
            return version or _as_the_library_says(name)
    return _as_the_library_says(name)


@lru_cache(maxsize=64)
def _infos(folder: str, _: int) -> tuple[str, ...]:
    try:
        return tuple(entry for entry in os.listdir(folder) if entry.endswith((".dist-info", ".egg-info", ".egg")))
    except OSError:
        return ()


def _header(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            headers = file.read(_HEADERS_SIZE).partition("\n\n")[0]
    except (OSError, ValueError):
        return None
    versions = re.findall(r"^Version: *(\S+) *$", headers, re.MULTILINE)
    return str(versions[0]) if len(versions) == 1 else None


def _as_the_library_says(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
