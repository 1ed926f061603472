"""Lists, reads, measures and removes the entries of a shared directory, for its collection.

Entries are in folders that are named by the first two characters of the entries' names.

Rules
1. Every path is relative to an open directory that was reached without following links below the root
   (shared_folder.py). A folder that is a link is an error. If it were ignored, its entries would count as missing.
2. Reading an entry here does not mark it as used, because the entry is opened with O_NOATIME. If that is not allowed (the
   file belongs to another user), only the mtime counts as its last use.
3. `read` raises FileNotFoundError if another process has just removed the entry. Its callers ignore this error.
"""

# Paths are relative to descriptors here, which pathlib cannot do.
# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import groupby

from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import StoreUnavailable
from trtbuild.store.local.layout import Kind
from trtbuild.store.transports.shared_folder import SharedFolder, fresh_name

_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_ATIME_FLAG = getattr(os, "O_NOATIME", 0)


class SharedEntries:
    """The entries of the directory `shared`. Methods raise OSError, and `list_all` also StoreUnavailable (rule 1)."""

    def __init__(self, shared: SharedFolder) -> None:
        self._shared = shared

    def list_all(self, kind: Kind) -> Iterator[tuple[str, os.stat_result, int]]:
        """Yield the name and stat of every entry, and the descriptor of its folder, in no particular order."""
        for folder in self._open_folders(kind):
            with os.scandir(folder) as files:
                for entry in files:
                    if is_digest(entry.name):
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            if stat.S_ISREG(status.st_mode):
                                yield entry.name, status, folder

    def _open_folders(self, kind: Kind) -> Iterator[int]:
        """Yield the descriptor of each folder."""
        try:
            with self._shared.folder(kind) as folder:
                names = [name for name in os.listdir(folder) if _FOLDER_NAME.fullmatch(name)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._listing_error(kind, error) from error
        for name in names:
            try:
                with self._shared.folder(kind, name) as folder:
                    yield folder
            except (NotADirectoryError, PermissionError) as error:
                raise self._listing_error(f"{kind}/{name}", error) from error

    def _listing_error(self, name: str, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"{name} cannot be listed ({error.strerror}); nothing more is collected",
            file=self._shared.root,
            hint="it must be a directory (not a symbolic link) that this user may read",
        )

    def read(self, name: str, status: os.stat_result, folder: int, limit: int) -> tuple[bytes | None, int]:
        """The bytes of an entry (None if there are more than `limit`), and its time of last use (ns, rule 2)."""
        used_ns = max(status.st_mtime_ns, status.st_atime_ns)
        try:
            descriptor = os.open(name, _READ_FLAGS | _NO_ATIME_FLAG, dir_fd=folder)
        except PermissionError:
            used_ns = status.st_mtime_ns
            descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
        with open(descriptor, "rb") as file:
            data = file.read(limit + 1)
        return (data if len(data) <= limit else None), used_ns

    def status(self, kind: Kind, name: str) -> os.stat_result | None:
        """The stat of an entry, or None if there is no such entry."""
        with contextlib.suppress(FileNotFoundError), self._shared.folder(kind, name[:2]) as folder:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        return None

    def remove(self, kind: Kind, name: str) -> None:
        """Unlink an entry."""
        with contextlib.suppress(FileNotFoundError), self._shared.folder(kind, name[:2]) as folder:
            os.unlink(name, dir_fd=folder)

    def now_ns(self) -> int:
        """The time of the directory's file system."""
        with self._shared.folder("tmp") as folder:
            name = fresh_name()
            descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                return os.fstat(descriptor).st_mtime_ns
            finally:
                os.close(descriptor)
                os.unlink(name, dir_fd=folder)

    def allocated_bytes(self) -> int:
        """The allocated bytes of the directory, as ``du -s`` counts them: with directories, and each hard-linked file
        once."""
        total, seen_inodes = 0, set[tuple[int, int]]()
        with self._shared.folder() as root:
            for _, folders, files, folder in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                total += os.fstat(folder).st_blocks * 512
                # ``fwalk`` lists a link to a directory among the directories, and does not follow it.
                for name in [*files, *(name for name in folders if _is_link(name, folder))]:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if status.st_nlink > 1:
                            if (status.st_dev, status.st_ino) in seen_inodes:
                                continue
                            seen_inodes.add((status.st_dev, status.st_ino))
                        total += status.st_blocks * 512
        return total

    def remove_leftovers(self, before_ns: int) -> int:
        """Remove files below ``tmp/`` with an mtime before `before_ns`, and empty directories that killed writers left
        there or in the root. Returns the number of removed files and directories."""
        with self._shared.folder() as root:
            removed = sum(_remove_unfinished_folder(name, root, before_ns) for name in os.listdir(root))
        with contextlib.suppress(FileNotFoundError), self._shared.folder("tmp") as tmp:
            for _, folders, files, folder in os.fwalk(".", topdown=False, dir_fd=tmp, follow_symlinks=False):
                for name in files:
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns < before_ns:
                            os.unlink(name, dir_fd=folder)
                            removed += 1
                removed += sum(_remove_unfinished_folder(name, folder, before_ns) for name in folders)
        return removed


def _remove_unfinished_folder(name: str, folder: int, before_ns: int) -> bool:
    """Remove the empty directory of a writer that was killed while it created a folder. Returns whether it was removed."""
    if name.startswith("."):
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns < before_ns:
                os.rmdir(name, dir_fd=folder)
                return True
    return False


def _is_link(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def group_by_folder(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each folder, with those of `names` that are in the folder."""
    for folder_name, group in groupby(sorted(names), key=lambda name: name[:2]):
        yield folder_name, list(group)
