"""Writes files and directories in a directory that several users share.

Rules
1. No symbolic link below the root is followed: each directory is opened relative to its parent, with O_NOFOLLOW.
2. The root's mode and group determine who may use a file. The umask of the file's writer does not matter. A file or
   directory gets its permissions before it gets its final name.
3. A file gets its final name after all its bytes are written and synced. If an existing file may stay (`is_kept`), ``link``
   gives the new file its final name, and fails if a file has this name. NFS may repeat a ``link`` whose answer was lost,
   and then report that the name exists. In this case the new file has two names, so the ``link`` was successful.
"""

# Paths are relative to descriptors here, which pathlib cannot do.
# ruff: noqa: PTH102, PTH116
from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe waits for its other end.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

#: Errors of ``link`` if the file system cannot make a hard link to the new file.
_NO_LINK_ERRORS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class RootIsNotADirectory(OSError):
    """The root is not a directory."""


class SharedFolder:
    """The directory `root`. All methods raise OSError."""

    def __init__(self, root: str) -> None:
        self.root = root
        #: False after a write has found that the file system cannot make hard links.
        self.has_hard_links = True

    @contextlib.contextmanager
    def folder(self, *path: str) -> Iterator[int]:
        """Open a directory below the root, and yield its descriptor."""
        try:
            descriptor = os.open(self.root, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
        except NotADirectoryError as error:
            raise RootIsNotADirectory(errno.EINVAL, "not a directory") from error
        try:
            for name in path:
                child = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, *path: str) -> int:
        """Open a file of any kind, except a symbolic link, for reading. Returns its descriptor."""
        with self.folder(*path[:-1]) as folder:
            return os.open(path[-1], _FILE_FLAGS, dir_fd=folder)

    def make(self, *path: str) -> None:
        """Create the missing directories of `path`, and ``tmp``. Create the root, too, if its parent exists."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.root, 0o777)
        with self.folder() as root:
            self._make_folder("tmp", root, root)
            with self.folder("tmp") as tmp:
                for depth, name in enumerate(path):
                    with self.folder(*path[:depth]) as parent:
                        self._make_folder(name, parent, tmp)

    def _make_folder(self, name: str, parent: int, tmp: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=parent, follow_symlinks=False)
            return
        fresh = f".{fresh_name()}"
        os.mkdir(fresh, 0o700, dir_fd=tmp)
        try:
            descriptor = os.open(fresh, _FOLDER_FLAGS, dir_fd=tmp)
            try:
                self._set_permissions(descriptor, 0o7777, 0o700)
            finally:
                os.close(descriptor)
            os.rename(fresh, name, src_dir_fd=tmp, dst_dir_fd=parent)
            sync_descriptor(parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(fresh, dir_fd=tmp)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # otherwise another writer was faster
                raise

    def write(
        self,
        path: tuple[str, ...],
        data: bytes | memoryview,
        *,
        is_kept: Callable[[os.stat_result], bool] | None = None,
    ) -> bool:
        """Replace the file at `path` by the bytes `data`. Its directories must exist. Returns whether the file was written.

        An existing file stays if `is_kept` returns True for its stat. On a file system without hard links, the later of two
        simultaneous writers replaces the file.
        """
        with self.folder("tmp") as tmp, self.folder(*path[:-1]) as folder:
            fresh = fresh_name()
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=tmp)
            try:
                self._set_permissions(descriptor, 0o666, 0o400)
                view = memoryview(data).cast("B")
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
                published = self._publish(descriptor, fresh, tmp, path[-1], folder, is_kept)
            finally:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=tmp)
            sync_descriptor(folder)
        return published

    def _publish(
        self,
        descriptor: int,
        fresh: str,
        tmp: int,
        name: str,
        folder: int,
        is_kept: Callable[[os.stat_result], bool] | None,
    ) -> bool:
        """Give the file `fresh` in the directory `tmp` its final `name` in `folder` (rule 3). Returns False if an existing
        file stays."""
        if is_kept is not None:
            try:
                os.link(fresh, name, src_dir_fd=tmp, dst_dir_fd=folder, follow_symlinks=False)
                return True
            except OSError as error:
                if error.errno not in (*_NO_LINK_ERRORS, errno.EEXIST):
                    raise
                if error.errno != errno.EEXIST:
                    self.has_hard_links = False
            if os.fstat(descriptor).st_nlink > 1:  # rule 3
                return True
            with contextlib.suppress(FileNotFoundError):
                if is_kept(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    return False
        os.rename(fresh, name, src_dir_fd=tmp, dst_dir_fd=folder)
        return True

    def _set_permissions(self, descriptor: int, bits: int, min_bits: int) -> None:
        """Give a new file or directory the root's group. Its mode has the bits that the root's mode shares with `bits`, and
        the bits `min_bits`."""
        root, new = os.stat(self.root), os.fstat(descriptor)
        if new.st_gid != root.st_gid:
            with contextlib.suppress(OSError):  # the writer is not a member of that group
                os.fchown(descriptor, -1, root.st_gid)
        with contextlib.suppress(PermissionError):  # some file systems have fixed modes
            os.fchmod(descriptor, root.st_mode & bits | min_bits)


def sync_descriptor(folder: int) -> None:
    """Sync a directory, if its file system supports that."""
    with contextlib.suppress(OSError):
        os.fsync(folder)


def fresh_name() -> str:
    """A name that is unique on all machines. It begins with the host and the process, for people who look at the files."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(12)}"
