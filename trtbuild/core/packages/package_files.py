"""The files that a package index names. `package_reading` checks the whole index, and is therefore much slower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtbuild.core.values.encoding import is_digest


@dataclass(frozen=True)
class PackageFiles:
    """The files of a package except its index, as path → SHA-256, and the names of its targets.

    `data` are the bytes of the index."""

    files: Mapping[str, str]
    targets: tuple[str, ...]
    data: bytes = field(repr=False)


def file_sizes(data: bytes) -> dict[str, int]:
    """The files that an index names: SHA-256 → size in bytes. Files whose size is not an integer are left out.

    Raises ValueError, KeyError, TypeError, AttributeError or RecursionError if `data` is not an index."""
    entries = json.loads(data)["files"].values()
    return {entry["sha256"]: entry["size"] for entry in entries if isinstance(entry.get("size"), int)}


def read_files(data: bytes) -> PackageFiles:
    """Return the files that an index names.

    Raises ValueError, KeyError, TypeError, AttributeError or RecursionError if `data` is not an index, and ValueError if a
    path leads out of the package or a digest is not valid.
    """
    document = json.loads(data)
    files = {path: entry["sha256"] for path, entry in document["files"].items()}
    for path, sha256 in files.items():
        parts = path.split("/")
        if ".." in parts or "" in parts or "\0" in path or not is_digest(sha256):
            raise ValueError(f"not a file of a package: {path!r:.80}")
    return PackageFiles(files, tuple(document.get("targets", ())), data)
