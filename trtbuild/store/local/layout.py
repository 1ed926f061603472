"""The layout of a store's directory, and its format version. See docs/store-format.md.

format            the version of this layout
cas/<aa>/<sha256> bytes, named by their SHA-256; aa is the first two digits of the SHA-256
ac/<aa>/<key>     records and chunk lists, by key
tmp/              unfinished files
quarantine/       damaged entries, for a person to look at
locks/            lock files: `store`, `records`, and one for each key that is being built
sessions/         one file for each running session (the time in which a process uses the store)

Bazel's remote caches have the same two parts: the content-addressable storage (CAS) and the action cache (AC).

If the group or all users may write to the store's directory, several users share the store. Then every file and directory
in the store gets the group and the mode of the store's directory (files without the execute bits), and the umask does not
count. So each user can read, touch and lock the files of the others.
"""

# Paths are strings here: a large blob has thousands of them, and pathlib is slow.
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH112, PTH116
from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import StoreUnavailable
from trtbuild.regular import read_regular

#: The directory of an entry.
Kind = Literal["cas", "ac"]

#: The format that this code reads and writes.
FORMAT = "trtbuild.store/1"

_FORMAT_PATTERN = re.compile(r"trtbuild\.store/([1-9][0-9]*)\n?")

_HINTS_BY_ERRNO = {
    errno.ENOSPC: "free some space, or run `trtbuild cache gc`",
    errno.EDQUOT: "the disk quota is used up: free some space, or run `trtbuild cache gc`",
    errno.EFBIG: "a limit on file sizes is in force (ulimit -f)",
    errno.EACCES: "make the directory writable, or set TRTBUILD_CACHE_DIR to another one",
    errno.EPERM: "make the directory writable, or set TRTBUILD_CACHE_DIR to another one",
    errno.EROFS: "the file system is read-only: set TRTBUILD_CACHE_DIR to another directory",
    errno.ENOTDIR: "a file is in its way: remove it, or set TRTBUILD_CACHE_DIR to another directory",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOLCK: "the file system has no locks: set TRTBUILD_CACHE_DIR to a local directory",
    errno.EOPNOTSUPP: "the file system has no locks: set TRTBUILD_CACHE_DIR to a local directory",
}


def unavailable_error(error: OSError, root: str) -> StoreUnavailable:
    """Return the error for a store whose directory cannot be used."""
    hint = _HINTS_BY_ERRNO.get(error.errno or 0, "set TRTBUILD_CACHE_DIR to a directory that can be written")
    return StoreUnavailable(f"the cache cannot be used: {error.strerror or error}", file=root, hint=hint)


@dataclass(frozen=True)
class Layout:
    """The paths of a store."""

    root: str

    @property
    def tmp(self) -> str:
        return f"{self.root}/tmp"

    @property
    def quarantine(self) -> str:
        return f"{self.root}/quarantine"

    @property
    def locks(self) -> str:
        return f"{self.root}/locks"

    @property
    def sessions(self) -> str:
        return f"{self.root}/sessions"

    def entry_path(self, kind: Kind, name: str) -> str:
        """The path of an entry. Raises ValueError for a name that is not a digest, because it could lead out of the
        store."""
        if not is_digest(name):
            raise ValueError(f"not a digest: {name!r}")
        return f"{self.root}/{kind}/{name[:2]}/{name}"

    def fresh_path(self) -> str:
        """A unique path in ``tmp/``. For people who look at the files, the name begins with the id of the process."""
        return f"{self.tmp}/{os.getpid()}-{secrets.token_hex(12)}"

    def shared_root_status(self) -> os.stat_result | None:
        """The stat of the root, if several users share the store; otherwise None. Raises OSError."""
        root_status = os.stat(self.root)
        return root_status if root_status.st_mode & 0o022 else None

    def make_folder(self, path: str) -> None:
        """Create a directory, if it is missing. Its parent must exist. Raises OSError.

        In a shared store, the directory is created in ``tmp/``, gets its mode there, and is then renamed to `path`. Only
        ``tmp/`` itself is created in place."""
        if os.path.isdir(path):
            return
        root_status = self.shared_root_status()
        fresh = path
        try:
            if root_status is not None and path != self.tmp:
                fresh = self.fresh_path()
            os.mkdir(fresh)
            if root_status is not None:
                descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    set_permissions(descriptor, root_status, 0o7777)
                finally:
                    os.close(descriptor)
            if fresh != path:
                os.rename(fresh, path)
        except OSError:
            if fresh != path:
                with contextlib.suppress(OSError):
                    os.rmdir(fresh)
            if not os.path.isdir(path):  # otherwise another process was faster
                raise

    def entries(self, kind: Kind) -> Iterator[tuple[str, os.stat_result]]:
        """The name and stat of every entry, in no particular order.

        Raises StoreUnavailable when a directory cannot be read.
        """
        try:
            with os.scandir(f"{self.root}/{kind}") as children:
                folders = [child for child in children if len(child.name) == 2]
            for folder in folders:
                for file in list_folder(folder.path):
                    if is_digest(file.name) and file.name.startswith(folder.name):
                        with contextlib.suppress(FileNotFoundError):
                            if file.is_file(follow_symlinks=False):
                                yield file.name, file.stat(follow_symlinks=False)
        except FileNotFoundError:  # nothing was written yet
            return
        except OSError as error:
            raise unavailable_error(error, self.root) from error

    def check_format(self) -> bool:
        """Check the format of the store. Returns whether the store exists. Raises StoreUnavailable for an unknown format,
        and if the format cannot be read."""
        try:
            text = read_regular(f"{self.root}/format").decode("utf-8", errors="replace")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unavailable_error(error, self.root) from error
        if text.strip() == FORMAT:
            return True
        match = _FORMAT_PATTERN.fullmatch(text)
        raise StoreUnavailable(
            f"the cache has the format {text.strip()[:60]!r}; this version of trtbuild reads {FORMAT}",
            file=f"{self.root}/format",
            hint="upgrade trtbuild, or set TRTBUILD_CACHE_DIR to another directory"
            if match
            else "this is not a cache of trtbuild: set TRTBUILD_CACHE_DIR to another directory",
        )

    def create(self) -> None:
        """Create the missing directories, then the format file. Raises StoreUnavailable."""
        try:
            os.makedirs(self.root, exist_ok=True)
            for name in ("tmp", "cas", "ac", "quarantine", "locks", "sessions"):
                self.make_folder(f"{self.root}/{name}")
            if not self.check_format():
                fresh = self.fresh_path()
                with open(fresh, "x", encoding="utf-8") as file:
                    if (root_status := self.shared_root_status()) is not None:
                        set_permissions(file.fileno(), root_status, 0o666)
                    file.write(f"{FORMAT}\n")
                    file.flush()
                    os.fsync(file.fileno())  # an empty file would be an unknown format
                os.rename(fresh, f"{self.root}/format")
        except OSError as error:
            raise unavailable_error(error, self.root) from error


def set_permissions(descriptor: int, root_status: os.stat_result, bits: int) -> None:
    """Give a new file or directory the root's group and the root's mode (only those bits that are in `bits`).

    Raises OSError."""
    if os.fstat(descriptor).st_gid != root_status.st_gid:
        with contextlib.suppress(OSError):  # this user is not in that group
            os.fchown(descriptor, -1, root_status.st_gid)
    with contextlib.suppress(PermissionError):  # some file systems have fixed modes
        os.fchmod(descriptor, root_status.st_mode & bits)


def list_folder(path: str) -> list[os.DirEntry[str]]:
    """The entries of a directory; empty if there is no such directory. Raises OSError."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
