"""Find the owner of a file: Python, an installed distribution, trtbuild, or the user.

Rules
1. A file belongs to an installed distribution if the RECORD of the distribution lists it, or if it is in the metadata
   directory of the distribution. The RECORD of an editable distribution does not list its sources, so they belong to the
   user. All files without another owner belong to the user.
2. The standard library and the files of the interpreter belong to Python. The version of Python is in the key. Some other
   paths in ``site-packages`` depend only on the installed distributions, so they count as Python's: directories,
   ``__pycache__``, and paths that do not exist.
3. Files of the system and of this process (`IGNORED_PATHS`), and paths with a part such as ``.git`` (`IGNORED_ENTRIES`), do
   not affect a model. Mounted disks (`_MOUNTED_DISKS`) and folders in ``/dev/shm`` belong to the user. (Shared memory of
   processes is not in a folder: its name has no ``/``.)
4. The project may be below a path of rules 2 and 3, for example in ``/usr/lib``. The part of a path above the project has
   no effect in these rules, so the files of this project still belong to the user.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH112, PTH117, PTH206, PTH208

from __future__ import annotations

import functools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtbuild import errors
from trtbuild.stages.trace.user_code.observe import IGNORED_ENTRIES, normalized

#: ``ignored`` is the kind of the files of rule 3, and of code without a file.
OwnerKind = Literal["python", "distribution", "trtbuild", "ignored", "user"]

#: Paths that are not dependencies → the reason. Files below these paths are not dependencies either, except those of
#: rules 3 and 4, and those in directories of installed distributions.
IGNORED_PATHS: dict[str, str] = {
    "/proc": "the state of processes, not of a model",
    "/sys": "the state of the kernel and its devices",
    "/dev": "devices; /dev/shm is memory that this process shares with its own workers",
    "/run": "sockets and locks of running services",
    "/etc/localtime": "a trace does not notice the clock (`discovery`)",
    "/usr/share/zoneinfo": "a trace does not notice the clock (`discovery`)",
    "/etc/passwd": "the user's identity must not change a key",
    "/etc/nsswitch.conf": "the user's identity must not change a key",
    "/etc/hosts": "a trace does not notice the network (`discovery`)",
    "/etc/resolv.conf": "a trace does not notice the network (`discovery`)",
    "/etc/host.conf": "a trace does not notice the network (`discovery`)",
    "/etc/ld.so.cache": "the locations of the system's libraries; the platform is in the key",
    "/etc/mime.types": "read by the standard library's mimetypes",
    "/lib": "the system's libraries; the platform is in the key",
    "/lib64": "the system's libraries; the platform is in the key",
    "/usr/lib": "the system's libraries; the platform is in the key",
    "/usr/lib64": "the system's libraries; the platform is in the key",
}

#: Paths in `IGNORED_PATHS` where desktops mount removable disks.
_MOUNTED_DISKS = ("/run/media",)

#: Installed distributions that do not affect a model → the reason.
IGNORED_DISTRIBUTIONS: dict[str, str] = {
    "trtbuild": "the key has the versions of its steps",
    "setuptools": "its .pth file loads a shim into every interpreter",
    "pip": "it installs distributions, and models do not import it",
}

_PACKAGE = str(Path(errors.__file__).resolve().parent)

#: The directory that the package trtbuild is imported from.
PACKAGE_PARENT = os.path.dirname(_PACKAGE)


@dataclass(frozen=True)
class FileOwner:
    """The owner of a path. `distribution` is the normalized name of the distribution, if the owner is one."""

    kind: OwnerKind
    distribution: str | None = None


class FileOwners:
    """Finds the `FileOwner` of paths, and caches it, because a file is looked up thousands of times."""

    def __init__(self, project: Path | None = None) -> None:
        """`project` is the directory of the project, if there is one."""
        self._project = None if project is None else os.path.realpath(project)
        self._owners_by_path: dict[str, FileOwner] = {}
        self._site_directories = _site_directories()
        self._python_paths = _python_paths()
        self._records_by_site: dict[str, _Records] = {}

    def of(self, path: str) -> FileOwner:
        """The owner of `path`, which is absolute or the file name of a frame. The file need not exist."""
        owner = self._owners_by_path.get(path)
        if owner is None:
            owner = self._owners_by_path[path] = self._find_owner(path)
        return owner

    def is_user(self, path: str) -> bool:
        return self.of(path).kind == "user"

    def forget_files(self) -> None:
        """Forget owners of files that do not belong to distributions. Such owners can change while this process runs."""
        self._owners_by_path = {
            path: owner for path, owner in self._owners_by_path.items() if owner.kind == "distribution"
        }

    def _find_owner(self, path: str) -> FileOwner:
        if path.startswith("<") or not os.path.isabs(path):
            # <frozen importlib._bootstrap> and <string>: code without a file
            return FileOwner("python" if path.startswith("<frozen") else "ignored")
        normal_path = os.path.normpath(path)
        for name in _path_and_target(normal_path):
            if name == _PACKAGE or name.startswith(_PACKAGE + os.sep):
                return FileOwner("trtbuild")
            for directory in self._site_directories:
                if name == directory or name.startswith(directory + os.sep):
                    return self._owner_in_site(directory, name)
        for name in _path_and_target(normal_path):
            if any(self._is_in(name, prefix) for prefix in self._python_paths):
                return FileOwner("python")
            if any(self._is_in(name, prefix) for prefix in IGNORED_PATHS) and not _is_on_disk_or_in_folder(name):
                return FileOwner("ignored")
        if self._project is not None:
            normal_path = normal_path.removeprefix(self._project + os.sep)
        if any(part in IGNORED_ENTRIES for part in normal_path.split(os.sep)):
            return FileOwner("ignored")
        return FileOwner("user")

    def _is_in(self, path: str, directory: str) -> bool:
        """Whether `path` is `directory` or below it. But False if `path` is in the project, and the whole project is below
        `directory` (rule 4)."""
        if not _is_below(path, directory):
            return False
        project = self._project
        return project is None or not (_is_below(project, directory) and _is_below(path, project))

    def _owner_in_site(self, directory: str, path: str) -> FileOwner:
        records = self._records_by_site.get(directory)
        if records is None:
            records = self._records_by_site[directory] = _Records(directory)
        relative = os.path.relpath(path, directory).replace(os.sep, "/")
        if relative == ".":
            return FileOwner("python")
        distribution = records.distribution_of(relative)
        if distribution is not None:
            return FileOwner("distribution", distribution)
        if "__pycache__" in relative.split("/") or not os.path.lexists(path) or os.path.isdir(path):
            return FileOwner("python")  # these paths depend on the installed distributions only
        return FileOwner("user")


def read_installed_records() -> None:
    """Read the RECORD of each distribution, for all later objects of `FileOwners` in this process and in its forks."""
    for directory in _site_directories():
        _Records(directory)


class _Records:
    """The RECORD files in one directory of installed distributions, such as ``site-packages``."""

    def __init__(self, directory: str) -> None:
        #: (name of the distribution, its files, the entries of `directory` that have these files).
        self._record_files: list[tuple[str, frozenset[str], frozenset[str]]] = []
        for entry in sorted(os.listdir(directory)):
            match = re.fullmatch(r"(.+?)-[^-]+(?:-.+)?\.(?:dist|egg)-info", entry)
            if match is None:
                continue
            for name in ("RECORD", "installed-files.txt", "SOURCES.txt"):
                path = os.path.join(directory, entry, name)
                try:
                    status = os.stat(path)  # noqa: PTH116
                    files, top_names = _read_record(path, status.st_ino, status.st_size, status.st_mtime_ns)
                except OSError:
                    continue
                self._record_files.append((normalized(match.group(1)), files, top_names))
                break

    def distribution_of(self, relative: str) -> str | None:
        """The distribution whose RECORD lists the file `relative`, or whose metadata directory contains it; otherwise
        None."""
        top_name = relative.split("/", 1)[0]
        candidates = [(name, files) for name, files, top_names in self._record_files if top_name in top_names]
        for name, files in candidates:
            if relative in files or (relative == top_name and top_name.endswith("-info")):
                return name
        if top_name.endswith("-info"):
            return next((name for name, _ in candidates), None)
        return None


@functools.cache
def _read_record(path: str, inode: int, size: int, modified_ns: int) -> tuple[frozenset[str], frozenset[str]]:
    """The files in a RECORD, and their first path components. Raises OSError.

    The result is cached, because all the files of an environment have about 100,000 lines. The last three arguments
    identify the content: pip replaces a RECORD, and does not write into it."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    files = frozenset(_record_path(line) for line in text.splitlines() if line)
    metadata_directory = os.path.basename(os.path.dirname(path))
    if os.path.basename(path) == "installed-files.txt":  # its paths are relative to the metadata directory
        files = frozenset(os.path.normpath(os.path.join(metadata_directory, file)) for file in files)
    return files, frozenset(file.split("/", 1)[0] for file in files) | {metadata_directory}


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)


def _is_on_disk_or_in_folder(path: str) -> bool:
    """Whether `path` is on a mounted disk, or in a folder of ``/dev/shm`` (rule 3)."""
    return any(_is_below(path, mounted) for mounted in _MOUNTED_DISKS) or (
        path.startswith("/dev/shm/") and path.count("/") > 3
    )


def _path_and_target(path: str) -> Iterator[str]:
    """Yield `path`, then its real path, which takes many system calls and is often not needed."""
    yield path
    yield os.path.realpath(path)


def _record_path(line: str) -> str:
    """The path in a line of a RECORD, which is a CSV file: the first field, without quotes."""
    if line.startswith('"'):
        return line[1:].split('"', 1)[0]
    return line.split(",", 1)[0]


def _site_directories() -> tuple[str, ...]:
    entries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    entries.add(site.getusersitepackages())
    for entry in sys.path:
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            entries.add(entry)
    directories = {os.path.realpath(entry) for entry in entries if os.path.isdir(entry)}
    directories |= {os.path.normpath(entry) for entry in entries if os.path.isdir(entry)}
    return tuple(sorted(directories, key=len, reverse=True))


@functools.cache
def _python_paths() -> tuple[str, ...]:
    """The files and directories that belong to Python (rule 2)."""
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths |= {os.path.join(prefix, "pyvenv.cfg") for prefix in (sys.prefix, sys.exec_prefix)}
    paths |= {os.path.join(p, name) for p in (sys.base_prefix, sys.base_exec_prefix) for name in ("lib", "share")}
    paths |= {entry for entry in sys.path if entry.endswith(".zip") and os.path.dirname(entry).endswith("lib")}
    if sys.executable:
        paths.add(os.path.realpath(sys.executable))
        paths.add(sys.executable)
    return tuple(sorted({os.path.realpath(entry) for entry in paths} | {os.path.normpath(entry) for entry in paths}))
