"""Checks of the cache, of the index of file digests, and of the project's state."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trtbuild.driver.doctor.finding import Finding, ok, problem, warning
from trtbuild.driver.project import wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.errors import StoreUnavailable
from trtbuild.store.digests.index import Index
from trtbuild.store.local.layout import Layout, list_folder
from trtbuild.store.local.leftovers import UNFINISHED_AGE_S

#: Free space of less than `LITTLE_SPACE_BYTES` is a warning, and of less than `TOO_LITTLE_SPACE_BYTES` a problem.
LITTLE_SPACE_BYTES = 10 << 30
TOO_LITTLE_SPACE_BYTES = 1 << 30

#: Types of file systems on a server, as mount(8) names them.
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "lustre",
)


def check_cache(project: Path) -> Iterator[Finding]:
    """Yield findings about the cache: its format, write access, free space, file system and leftover files."""
    root = wiring.store_root(project)
    try:
        wiring.open_local(project)
    except StoreUnavailable as error:
        yield problem("cache", error.text, error.hint or "set TRTBUILD_CACHE_DIR to another directory")
        return
    nearest_directory = _nearest_directory(root)
    why_not = _reason_not_writable(root / "tmp" if (root / "tmp").is_dir() else nearest_directory)
    if why_not is not None:
        yield problem(
            "cache",
            f"{root} cannot be written: {why_not}; cached results are used, but nothing can be built",
            f'chmod u+rwX "{nearest_directory}", or export TRTBUILD_CACHE_DIR to another directory',
        )
    else:
        yield ok("cache", f"{root}{'' if root.is_dir() else ', which the first build creates'}")
    yield _check_space(nearest_directory)
    kind = file_system(nearest_directory)
    if kind in NETWORK_FILE_SYSTEMS:
        text = f"{root} is on {kind}: locks and durable writes are slow there, and depend on the server"
        yield warning("cache", text, "export TRTBUILD_CACHE_DIR to a local directory")
    yield from _check_leftovers(Layout(str(root)))


def _nearest_directory(path: Path) -> Path:
    """Return the nearest existing directory: `path` or one of its parents."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _reason_not_writable(folder: Path) -> str | None:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trtbuild-doctor-") as file:
            file.write(b"?")
            file.flush()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _check_space(folder: Path) -> Finding:
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return warning("space", f"the free space of {folder} is not known: {error.strerror}", f'df -h "{folder}"')
    text = f"{free_bytes / 2**30:,.1f} GiB free for the cache"
    if free_bytes < TOO_LITTLE_SPACE_BYTES:
        return problem("space", text, "trtbuild cache gc --max-size 10GiB")
    if free_bytes < LITTLE_SPACE_BYTES:
        return warning("space", text, "trtbuild cache gc --max-size 10GiB")
    return ok("space", text)


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the file system of `folder`, as mount(8) names it. None if it is not known."""
    try:
        lines = mounts.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    path = os.path.realpath(folder)
    longest_mount_point, kind = "", None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount_point = fields[1].replace("\\040", " ")
        contains_folder = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        if contains_folder and len(mount_point) >= len(longest_mount_point):  # a later mount hides an earlier one
            longest_mount_point, kind = mount_point, fields[2]
    return kind


def _check_leftovers(layout: Layout) -> Iterator[Finding]:
    """Yield warnings about quarantined entries, and about unfinished files of killed processes."""
    quarantined_count = len(list_folder(layout.quarantine))
    if quarantined_count:
        text = "1 damaged entry is" if quarantined_count == 1 else f"{quarantined_count} damaged entries are"
        yield warning("quarantine", f"{text} in {layout.quarantine}", "trtbuild cache verify")
    limit_s = time.time() - UNFINISHED_AGE_S
    old_count = sum(_is_older(entry, limit_s) for entry in list_folder(layout.tmp))
    if old_count:
        yield warning("leftovers", f"{old_count} unfinished files of processes that were killed", "trtbuild cache gc")


def _is_older(entry: os.DirEntry[str], limit_s: float) -> bool:
    """Whether an entry was changed before the time `limit_s`."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime < limit_s
    except OSError:
        return False


def check_state(project: Path) -> Iterator[Finding]:
    """Yield findings about ``.trtbuild/`` and the index of file digests in it. Both can be deleted at any time."""
    folder = project / STATE_FOLDER
    why_not = (
        _reason_not_writable(_nearest_directory(folder))
        if not folder.exists() or folder.is_dir()
        else "it is not a directory"
    )
    if why_not is not None:
        text = f"{folder} cannot be written: {why_not}. Builds work, but are slower: nothing is remembered"
        yield warning("state", text, f'chmod u+rwX "{_nearest_directory(folder)}"')
        return
    yield ok("state", f"{folder}{'' if folder.exists() else ', which the first build creates'}")
    with tempfile.TemporaryDirectory(prefix="trtbuild-doctor-") as scratch:
        directory = folder / "index" if (folder / "index").is_dir() else Path(scratch)
        index = Index(directory)
        index.set("doctor", 1)
        works = index.get("doctor") == 1
        index.forget("doctor")
        index.close()
    if not works:
        text = f"the index {directory} does not work: every file is hashed each time"
        yield warning(
            "index", text, f'rm -r "{directory}"' if directory.parent == folder else "pip install 'diskcache>=5.6.3'"
        )
    else:
        yield ok("index", "remembers digests of files")
