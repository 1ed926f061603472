"""Read the versions of installed distributions from their metadata, again only if their directories have changed.

`importlib.metadata` gives the same answers. But its import takes as long as planning a dozen models, and so do repeated
lookups. It is used only for unusual cases (not a wheel, two of the same name).
"""

# Paths are strings here, because every command runs this.
# ruff: noqa: PTH116, PTH208

import os
import re
import sys
from functools import lru_cache

_HEADERS_SIZE = 8 << 10


def installed_version(name: str) -> str | None:
    """The version of the distribution `name`, or None if it is not installed. It is not imported."""
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
