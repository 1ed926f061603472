"""Look up the present state of a dependency, which is something that user code looked at, such as a file.

Planning also uses this module, so torch is not imported here.

* The state of a listing is a digest of the names of a directory's entries, with ``/`` after the names of directories.
  Links to directories have another mark, because ``os.walk`` and ``Path.rglob`` do not follow them. The names in
  `IGNORED_ENTRIES` are left out; in the project's root, those in `IGNORED_IN_PROJECT` are left out, too.
* The state of a symbolic link is its target. An absolute target inside the project is written relative to the project,
  with ``./`` before it.
* The state of a distribution is its version, which is in the name of its ``.dist-info`` or ``.egg-info`` entry. If several
  entries of ``sys.path`` contain the distribution, the first one counts. If it was installed from a directory, a file or a
  repository (``pip install .``, not editable), the state also has a digest of its RECORD. The reason is that different
  builds of such a source often have the same version. If there is no distribution of this name, but an installed module,
  the state is `MODULE`: the distribution opencv-python has the module ``cv2``.
* The state of an import is the path that Python finds before user code changes ``sys.path``. The entries of ``PYTHONPATH``
  are searched before those of the installation. The state is ``absent`` for a module that is not found, and
  for a module of Python or of an installed distribution.
"""

# Paths are strings here: there are thousands of them, and their exact spelling counts.
# ruff: noqa: PTH115, PTH116, PTH208

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency

#: Names of entries that may appear and disappear without an effect on the model → the reason.
IGNORED_ENTRIES: dict[str, str] = {
    "__pycache__": "Python derives it from sources",
    ".git": "version control's own files",
    ".trtbuild": "trtbuild's own state",
}

#: Names of entries that trtbuild creates in the project's root → the reason. If they counted, the first build would change
#: the listing of the project, and a trace that depends on this listing would run again.
IGNORED_IN_PROJECT: dict[str, str] = {
    "dist": "a build writes its outputs there",
    "cache": "the default store",
    "trtbuild.lock": "`trtbuild lock` writes it",
}

#: The state of a path that is neither a file nor a directory: a pipe, a socket, a device.
SPECIAL = "special"

#: The name of a dependency on the names and versions of all installed distributions.
ALL_DISTRIBUTIONS = "*"

#: The state of a distribution that is not installed, if an installed module has its name.
MODULE = "module"

#: Prefixes of environment variables that workers do not inherit, because they may contain credentials. User code cannot
#: read them, so their state is always `ABSENT`.
HIDDEN_PREFIXES = ("TRTBUILD_SIGNING_KEY", "TRTBUILD_REMOTE", "TRTBUILD_WORKERS")

_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
#: The entries of ``sys.path`` that follow those of ``PYTHONPATH``: those of Python itself, and those from ``.pth`` files.
#: This module is imported before user code, which may append other entries.
_INSTALLED_ENTRIES = tuple(sys.path[sys.path.index(_STANDARD_LIBRARY) :]) if _STANDARD_LIBRARY in sys.path else ()

_METADATA_NAME = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")

#: Directory → (its mtime_ns, normalized name of a distribution → version and name of the metadata entry).
_versions: dict[str, tuple[int, dict[str, tuple[str, str]]]] = {}

#: Directory of installed distributions → (its mtime_ns, the normalized names of its modules).
_modules: dict[str, tuple[int, frozenset[str]]] = {}


def observe(dependency: Dependency, project: Path, sha256: Callable[[str], str | None]) -> str:
    """The present state of `dependency`, in the form of `trtbuild.core.recipes.dependency`.

    `sha256` returns the digest of the file at a path, None if the file cannot be read. The name of the dependency may come
    from another machine, so it may be invalid here, for example a path with a null byte. Then nothing has this name.
    """
    if dependency.kind == "distribution":
        return installed_state(dependency.name)
    if dependency.kind == "environment":
        if dependency.name.startswith(HIDDEN_PREFIXES):
            return ABSENT
        try:
            value = os.environ.get(dependency.name)
        except ValueError:
            return ABSENT
        return ABSENT if value is None else environment_digest(value)
    if dependency.kind == "import":
        return imported_path(dependency.name, os.fspath(project), os.environ.get("PYTHONPATH", ""))
    path = os.path.join(project, dependency.name)
    if dependency.kind == "listing":
        return listing(path, in_project=dependency.name == ".")
    if dependency.kind == "link":
        return link(path, os.fspath(project))
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ABSENT
    if stat.S_ISDIR(mode):
        return DIRECTORY
    if not stat.S_ISREG(mode):
        return SPECIAL
    return sha256(path) or ABSENT


def listing(path: str, *, in_project: bool = False) -> str:
    """SHA-256 of a directory's sorted entry names, or ``absent``. `in_project` is True for the project's root."""
    ignored = IGNORED_ENTRIES.keys() | (IGNORED_IN_PROJECT.keys() if in_project else set())
    try:
        with os.scandir(path) as entries:
            names = [_listed_name(entry) for entry in entries if entry.name not in ignored]
    except (OSError, ValueError):
        return ABSENT
    encoded = [name.encode("utf-8", "surrogateescape") for name in sorted(names)]
    return hashlib.sha256(b"".join(len(name).to_bytes(4, "big") + name for name in encoded)).hexdigest()


def _listed_name(entry: os.DirEntry[str]) -> str:
    """The name of an entry, with ``/`` after the name of a directory, and ``/@`` after that of a link to a directory."""
    if not entry.is_dir():
        return entry.name
    return f"{entry.name}/@" if entry.is_symlink() else f"{entry.name}/"


def link(path: str, project: str) -> str:
    """The target of a symbolic link, or ``absent`` if there is no link at `path`."""
    try:
        target = os.readlink(path)
    except (OSError, ValueError):
        return ABSENT
    if target == project or target.startswith(project + os.sep):
        target = "./" + target[len(project) + 1 :]
    return target.replace(os.sep, "/")


def imported_path(name: str, project: str, python_path: str) -> str:
    """The path of the user's file or directory that an import of the module `name` finds, or ``absent``.

    `python_path` is the value of ``PYTHONPATH``. The directories of the source are not searched."""
    # a trace runs in the project, so relative entries of PYTHONPATH are relative to the project
    entries = [os.path.join(project, entry) for entry in python_path.split(os.pathsep) if entry]
    spec = PathFinder.find_spec(name, [*entries, *_INSTALLED_ENTRIES])
    for finder in sys.meta_path:
        # setuptools adds such a finder for an editable distribution
        if spec is None and getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(name, None, None)
    if spec is None:
        return ABSENT
    found = [spec.origin] if spec.origin is not None else list(spec.submodule_search_locations or ())
    own = [path for path in found if not _INSTALLED_FOLDERS.intersection(Path(path).parts) and not _is_python(path)]
    names = [path.removeprefix(project + os.sep).replace(os.sep, "/") for path in map(os.path.normpath, own)]
    return os.pathsep.join(names) or ABSENT


def _is_python(path: str) -> bool:
    return path in ("built-in", "frozen") or path.startswith(_STANDARD_LIBRARY + os.sep)


def environment_digest(value: str) -> str:
    """SHA-256 of a variable's value. The value itself is not stored, because it may be a secret."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def file_digest(path: str) -> str | None:
    """SHA-256 of a file's bytes; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def normalized(name: str) -> str:
    """The normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_version(name: str) -> str | None:
    """The version of a distribution, by its normalized name; None if it is not installed."""
    found = _find_installed(name)
    return None if found is None else found[0]


def installed_state(name: str) -> str:
    """The state of a distribution, by its normalized name: its version, for some with a digest; else `MODULE` or
    ``absent``.

    The state of `ALL_DISTRIBUTIONS` is a digest."""
    if name == ALL_DISTRIBUTIONS:
        states = [f"{each} {installed_state(each)}\n" for each in sorted(_installed_names())]
        return hashlib.sha256("".join(states).encode()).hexdigest()
    found = _find_installed(name)
    if found is None:
        return MODULE if _is_installed_module(name) else ABSENT
    version, metadata = found
    files = _files_of_direct_install(metadata)
    return version if files is None else f"{version} {hashlib.sha256(files).hexdigest()}"


def _find_installed(name: str) -> tuple[str, str] | None:
    """The version and the metadata directory of a distribution; None if it is not installed."""
    for directory in sys.path:
        versions = _installed_versions(directory)
        if name in versions:
            version, entry = versions[name]
            return version, os.path.join(directory, entry)
    return None


def _installed_names() -> set[str]:
    """The normalized names of the distributions in the directories of installed distributions on ``sys.path``."""
    directories = [entry for entry in sys.path if os.path.basename(entry) in _INSTALLED_FOLDERS]
    return {name for directory in directories for name in _installed_versions(directory)}


def _installed_versions(directory: str) -> dict[str, tuple[str, str]]:
    """Normalized name of a distribution in an entry of ``sys.path`` → version and name of the metadata entry."""
    try:
        modified_ns = os.stat(directory or ".").st_mtime_ns
    except OSError:
        return {}
    cached_modified_ns, versions = _versions.get(directory, (None, {}))
    if cached_modified_ns != modified_ns:
        versions = _read_installed_versions(directory or ".")
        _versions[directory] = (modified_ns, versions)
    return versions


def _is_installed_module(name: str) -> bool:
    """Whether a directory of installed distributions on ``sys.path`` has a module with this normalized name."""
    for directory in sys.path:
        if os.path.basename(directory) not in _INSTALLED_FOLDERS:
            continue  # the user's files are other dependencies
        try:
            modified_ns = os.stat(directory).st_mtime_ns
            cached_modified_ns, modules = _modules.get(directory, (None, frozenset()))
            if cached_modified_ns != modified_ns:
                # the name of a module has no dot: `name.py`, `name.cpython-311-x86_64-linux-gnu.so`, `name`
                modules = frozenset(normalized(entry.split(".", 1)[0]) for entry in os.listdir(directory))
                _modules[directory] = (modified_ns, modules)
        except OSError:
            continue
        if name in modules or any(_has_module(directory, name, package) for package in modules):
            return True
    return False


def _has_module(directory: str, name: str, package: str) -> bool:
    """Whether the package `package` in `directory` has a module with this normalized name: ``google-protobuf`` is the
    normalized name of the module ``google.protobuf``, and several distributions may add modules to ``google``."""
    rest = name.removeprefix(f"{package}-")
    if rest == name:
        return False
    try:
        folders = [entry for entry in os.listdir(directory) if normalized(entry) == package]
        for folder in folders:
            entries = {normalized(entry.split(".", 1)[0]) for entry in os.listdir(os.path.join(directory, folder))}
            if rest in entries or any(_has_module(os.path.join(directory, folder), rest, entry) for entry in entries):
                return True
    except OSError:
        pass
    return False


def _files_of_direct_install(metadata: str) -> bytes | None:
    """The lines of a RECORD with the hashes of modules and data, if the distribution was not installed from an index (PEP
    610).

    None for other distributions, and for editable ones, whose sources are the user's files. None for packages of conda,
    too: they name the directory where they were built, but the content of a version does not change."""
    try:
        with open(os.path.join(metadata, "direct_url.json"), "rb") as file:
            origin = json.loads(file.read())
        if origin.get("dir_info", {}).get("editable") or _read_line(os.path.join(metadata, "INSTALLER")) == b"conda":
            return None
        with open(os.path.join(metadata, "RECORD"), "rb") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError, AttributeError):
        return None
    own_name = os.fsencode(os.path.basename(metadata) + "/")
    # scripts (../../bin) and metadata contain paths of this machine, and not every machine compiles .pyc files
    left_out = (b"../", b"/", own_name)
    return b"\n".join(
        sorted(line for line in lines if not line.lstrip(b'"').startswith(left_out) and b".pyc," not in line)
    )


def _read_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.readline().strip()
    except OSError:
        return b""


def _read_installed_versions(directory: str) -> dict[str, tuple[str, str]]:
    versions: dict[str, tuple[str, str]] = {}
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}
    for entry in names:
        match = _METADATA_NAME.fullmatch(entry)
        if match:
            versions.setdefault(normalized(match["name"]), (match["version"], entry))
    return versions
