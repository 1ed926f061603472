"""Read the versions of installed distributions from their metadata.

A version is read again only if a directory of ``sys.path`` has changed.

`importlib.metadata` gives the same answers, but its import alone takes as long as planning a dozen models. So it is used
only if this module does not find exactly one metadata folder with a version.
"""

# Paths are strings here, because every command runs this code.
# ruff: noqa: PTH116, PTH208

import os
import re
import sys
from functools import lru_cache

_HEADERS_SIZE = 8 << 10


def installed_version(name: str) -> str | None:
    """Return the version of the distribution `name`, or None if it is not installed."""
    return _version(name, tuple([(folder, _mtime_ns(folder or ".")) for folder in sys.path]))


def _mtime_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=256)
def _version(name: str, path: tuple[tuple[str, int], ...]) -> str | None:
    normalized_name = _normalized_name(name)
    for folder, mtime_ns in path:
        entries = _metadata_folders(folder or ".", mtime_ns)
        matches = [entry for entry in entries if _normalized_name(entry.partition("-")[0]) == normalized_name]
        if matches:
            version = _version_header(f"{folder or '.'}/{matches[0]}/METADATA") if len(matches) == 1 else None
            return version or _version_from_importlib(name)
    return _version_from_importlib(name)


@lru_cache(maxsize=64)
def _metadata_folders(folder: str, _mtime_ns: int) -> tuple[str, ...]:
    """List the metadata folders in `folder`. `_mtime_ns` is only for the key of `lru_cache`."""
    try:
        return tuple(entry for entry in os.listdir(folder) if entry.endswith((".dist-info", ".egg-info", ".egg")))
    except OSError:
        return ()


def _version_header(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            headers = file.read(_HEADERS_SIZE).partition("\n\n")[0]
    except (OSError, ValueError):
        return None
    versions = re.findall(r"^Version: *(\S+) *$", headers, re.MULTILINE)
    return str(versions[0]) if len(versions) == 1 else None


def _version_from_importlib(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
