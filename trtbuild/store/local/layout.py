"""The layout of a store's directory, and its format version. See cache/README.md.

format            the version of this layout
cas/<aa>/<sha256> bytes named by their SHA-256; aa is the first two digits of the SHA-256
ac/<aa>/<key>     entries by key: of records, and of chunk lists
tmp/              unfinished files
quarantine/       damaged entries, for a person to look at
locks/            `store`, `records`, and the keys that are being built
sessions/         one file for each running session

If the group, or all users, may write the root, then several users share the store. Then files and directories get the
root's mode and group, independent of the umask: each user must be able to read, touch and lock the files of the others.
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

from trtbuild.core.recipes.record import is_digest
from trtbuild.errors import StoreUnavailable
from trtbuild.regular import read_regular

Kind = Literal["cas", "ac"]

#: The format that this code reads and writes.
FORMAT = "trtbuild.store/1"

_FORMAT = re.compile(r"trtbuild\.store/([1-9][0-9]*)\n?")

_HINTS = {
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


def unavailable(error: OSError, root: str) -> StoreUnavailable:
    """Return the error for a store whose directory cannot be used."""
    hint = _HINTS.get(error.errno or 0, "set TRTBUILD_CACHE_DIR to a directory that can be written")
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

    def entry(self, kind: Kind, name: str) -> str:
        """The path of an entry. Raises ValueError for a name that is not a digest, so that no path leaves the directory."""
        if not is_digest(name):
            raise ValueError(f"not a digest: {name!r}")
        return f"{self.root}/{kind}/{name[:2]}/{name}"

    def fresh_name(self) -> str:
        """A unique path in ``tmp/``. The name begins with the id of the process, to help people who look at the files."""
        return f"{self.tmp}/{os.getpid()}-{secrets.token_hex(12)}"

    def shared(self) -> os.stat_result | None:
        """The stat of the root if several users share the store, or None. Raises OSError."""
        root = os.stat(self.root)
        return root if root.st_mode & 0o022 else None

    def make_folder(self, path: str) -> None:
        """Create a directory, if it is missing. Its parent must exist. The mode is set before the directory gets its final
        name. Raises OSError."""
        if os.path.isdir(path):
            return
        root = self.shared()
        fresh = path
        try:
            if root is not None and path != self.tmp:
                fresh = self.fresh_name()
            os.mkdir(fresh)
            if root is not None:
                descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    allow(descriptor, root, 0o7777)
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
        """The name and stat of every entry, in no particular order. Other files, and entries that are just being removed,
        are left out.

        Raises StoreUnavailable when a directory cannot be read, or is not a directory.
        """
        try:
            with os.scandir(f"{self.root}/{kind}") as children:
                folders = [child for child in children if len(child.name) == 2]
            for folder in folders:
                for file in listed(folder.path):
                    if is_digest(file.name) and file.name.startswith(folder.name):
                        with contextlib.suppress(FileNotFoundError):
                            if file.is_file(follow_symlinks=False):
                                yield file.name, file.stat(follow_symlinks=False)
        except FileNotFoundError:  # nothing was written yet
            return
        except OSError as error:
            raise unavailable(error, self.root) from error

    def check_format(self) -> bool:
        """Whether the store exists. Raises StoreUnavailable when it has an unknown format."""
        try:
            text = read_regular(f"{self.root}/format").decode("utf-8", errors="replace")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unavailable(error, self.root) from error
        if text.strip() == FORMAT:
            return True
        newer = _FORMAT.fullmatch(text)
        raise StoreUnavailable(
            f"the cache has the format {text.strip()[:60]!r}; this version of trtbuild reads {FORMAT}",
            file=f"{self.root}/format",
            hint="upgrade trtbuild, or set TRTBUILD_CACHE_DIR to another directory"
            if newer
            else "this is not a cache of trtbuild: set TRTBUILD_CACHE_DIR to another directory",
        )

    def create(self) -> None:
        """Create the missing directories, then the format file. Raises StoreUnavailable."""
        try:
            os.makedirs(self.root, exist_ok=True)
            for name in ("tmp", "cas", "ac", "quarantine", "locks", "sessions"):
                self.make_folder(f"{self.root}/{name}")
            if not self.check_format():
                fresh = self.fresh_name()
                with open(fresh, "x", encoding="utf-8") as file:
                    if (root := self.shared()) is not None:
                        allow(file.fileno(), root, 0o666)
                    file.write(f"{FORMAT}\n")
                    file.flush()
                    os.fsync(file.fileno())  # an empty file would be an unknown format
                os.rename(fresh, f"{self.root}/format")
        except OSError as error:
            raise unavailable(error, self.root) from error


def allow(descriptor: int, root: os.stat_result, bits: int) -> None:
    """Give a new file or directory the group of `root`, and the `bits` of its mode. Raises OSError."""
    if os.fstat(descriptor).st_gid != root.st_gid:
        with contextlib.suppress(OSError):  # this user is not in that group
            os.fchown(descriptor, -1, root.st_gid)
    with contextlib.suppress(PermissionError):  # some file systems have fixed modes
        os.fchmod(descriptor, root.st_mode & bits)


def listed(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
