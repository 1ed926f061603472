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
from trtbuild.errors import StoreUnavailable
from trtbuild.store.digests.index import Index
from trtbuild.store.local.layout import Layout, list_folder
from trtbuild.store.local.leftovers import UNFINISHED_AGE_S

#: Free space, in bytes: with less than `LITTLE` a build may fail, with less than `TOO_LITTLE` it will.
LITTLE = 10 << 30
TOO_LITTLE = 1 << 30

NETWORK = (
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


def cache(project: Path) -> Iterator[Finding]:
    """Yield findings about the store's directory: its format, write access, free space and file system."""
    root = wiring.store_root(project)
    try:
        wiring.open_local(project)
    except StoreUnavailable as error:
        yield problem("cache", error.text, error.hint or "set TRTBUILD_CACHE_DIR to another directory")
        return
    existing = _existing(root)
    why_not = _why_not_writable(root / "tmp" if (root / "tmp").is_dir() else existing)
    if why_not is not None:
        yield problem(
            "cache",
            f"{root} cannot be written: {why_not}; cached results are used, but nothing can be built",
            f'chmod u+rwX "{existing}", or export TRTBUILD_CACHE_DIR to another directory',
        )
    else:
        yield ok("cache", f"{root}{'' if root.is_dir() else ', which the first build creates'}")
    yield _space(existing)
    kind = file_system(existing)
    if kind in NETWORK:
        text = f"{root} is on {kind}: locks and durability depend on the server, and are slow"
        yield warning("cache", text, "export TRTBUILD_CACHE_DIR to a local directory")
    yield from _leftovers(Layout(str(root)))


def _existing(path: Path) -> Path:
    """Return the nearest existing directory: `path` or one of its parents."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _why_not_writable(folder: Path) -> str | None:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trtbuild-doctor-") as file:
            file.write(b"?")
            file.flush()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _space(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return warning("space", f"the free space of {folder} is not known: {error.strerror}", f'df -h "{folder}"')
    text = f"{free / 2**30:,.1f} GiB free for the cache"
    if free < TOO_LITTLE:
        return problem("space", text, "trtbuild cache gc --max-size 10GiB")
    if free < LITTLE:
        return warning("space", text, "trtbuild cache gc --max-size 10GiB")
    return ok("space", text)


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the file system of `folder`, by its name in mount(8); None if it is not known."""
    try:
        lines = mounts.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    path, best = os.path.realpath(folder), ("", None)
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, fields[2])  # type: ignore[assignment]
    return best[1]


def _leftovers(layout: Layout) -> Iterator[Finding]:
    """Yield warnings about quarantined entries, and about unfinished files of killed processes."""
    quarantined = len(list_folder(layout.quarantine))
    if quarantined:
        yield warning(
            "quarantine", f"{quarantined} damaged entries are in {layout.quarantine}", "trtbuild cache verify"
        )
    before_s = time.time() - UNFINISHED_AGE_S
    old = sum(_is_older(entry, before_s) for entry in list_folder(layout.tmp))
    if old:
        yield warning("leftovers", f"{old} unfinished files of processes that were killed", "trtbuild cache gc")


def _is_older(entry: os.DirEntry[str], limit_s: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < limit_s
    except OSError:
        return False


def state(project: Path) -> Iterator[Finding]:
    """Yield findings about ``.trtbuild/`` and the index in it. Both can be deleted at any time."""
    folder = project / wiring.STATE
    why_not = (
        _why_not_writable(_existing(folder)) if not folder.exists() or folder.is_dir() else "it is not a directory"
    )
    if why_not is not None:
        text = f"{folder} cannot be written: {why_not}. Builds work, but are slower: nothing is remembered"
        yield warning("state", text, f'chmod u+rwX "{_existing(folder)}"')
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
