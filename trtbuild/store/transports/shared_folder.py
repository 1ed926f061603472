"""Files and directories below one that several users share. Used by the shared directory and by its collection.

Rules
1. Nothing below the root is reached through a symbolic link: every step is an ``open`` relative to the directory before.
2. Who may use a file is what the root's mode and group say, not the umask of whoever wrote it. A file or directory gets
   them before it gets its name, so nobody meets one that is not open to them yet.
3. A name appears at once, with all its bytes, which are synced before. ``link`` gives it where there is none yet. NFS may
   repeat a ``link`` whose answer was lost, and then says that there is a file: it is ours if ours has two names.
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

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe waits for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class NotADirectory(OSError):
    """The root itself is something else."""


class SharedFolder:
    """The directory `root`. All methods raise OSError."""

    def __init__(self, root: str) -> None:
        self.root = root

    @contextlib.contextmanager
    def folder(self, *path: str) -> Iterator[int]:
        """A descriptor of a directory below the root."""
        try:
            descriptor = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        except NotADirectoryError as error:
            raise NotADirectory(errno.EINVAL, "not a directory") from error
        try:
            for name in path:
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, *path: str) -> int:
        """A descriptor to read what is there, which may be anything but a symbolic link."""
        with self.folder(*path[:-1]) as folder:
            return os.open(path[-1], _FILE, dir_fd=folder)

    def make(self, *path: str) -> None:
        """Make what is missing of the directories at `path`, and the root itself if its parent is there."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.root, 0o777)
        with self.folder() as root:
            self._make("tmp", root, root)
            with self.folder("tmp") as tmp:
                for depth, name in enumerate(path):
                    with self.folder(*path[:depth]) as parent:
                        self._make(name, parent, tmp)

    def _make(self, name: str, parent: int, workplace: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=parent, follow_symlinks=False)
            return
        fresh = f".{fresh_name()}"
        os.mkdir(fresh, 0o700, dir_fd=workplace)
        try:
            descriptor = os.open(fresh, _FOLDER, dir_fd=workplace)
            try:
                self._allow(descriptor, 0o7777, 0o700)
            finally:
                os.close(descriptor)
            os.rename(fresh, name, src_dir_fd=workplace, dst_dir_fd=parent)
            sync(parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(fresh, dir_fd=workplace)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another writer was faster
                raise

    def write(
        self, path: tuple[str, ...], data: bytes | memoryview, *, once: Callable[[os.stat_result], bool] | None = None
    ) -> bool:
        """Give the file at `path` the bytes `data`. The directories are there.

        With `once`, not in place of a file that it says is to stay: False then. A file system without hard links gets a
        look and a ``rename``: there, of two writers at the same moment the later one wins.
        """
        with self.folder("tmp") as tmp, self.folder(*path[:-1]) as folder:
            fresh = fresh_name()
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=tmp)
            try:
                self._allow(descriptor, 0o666, 0o400)
                view = memoryview(data).cast("B")
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
                published = _publish(descriptor, fresh, tmp, path[-1], folder, once)
            finally:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=tmp)
            sync(folder)
        return published

    def _allow(self, descriptor: int, bits: int, least: int) -> None:
        """Give a new file or directory the root's group, and those of its mode's `bits`, and `least` in any case."""
        root, new = os.stat(self.root), os.fstat(descriptor)
        if new.st_gid != root.st_gid:
            with contextlib.suppress(OSError):  # the writer is no member of that group
                os.fchown(descriptor, -1, root.st_gid)
        with contextlib.suppress(PermissionError):  # some file systems have their own modes, and no others
            os.fchmod(descriptor, root.st_mode & bits | least)


def _publish(
    descriptor: int, fresh: str, tmp: int, name: str, folder: int, once: Callable[[os.stat_result], bool] | None
) -> bool:
    if once is not None:
        try:
            os.link(fresh, name, src_dir_fd=tmp, dst_dir_fd=folder, follow_symlinks=False)
            return True
        except OSError as error:
            if error.errno not in (*_NO_LINKS, errno.EEXIST):
                raise
        if os.fstat(descriptor).st_nlink > 1:  # rule 3
            return True
        with contextlib.suppress(FileNotFoundError):
            if once(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return False
    os.rename(fresh, name, src_dir_fd=tmp, dst_dir_fd=folder)
    return True


def sync(folder: int) -> None:
    """fsync a directory, as far as its file system can."""
    with contextlib.suppress(OSError):
        os.fsync(folder)


def fresh_name() -> str:
    """A name that nothing else uses, on any machine; host and process are for a person to see."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{secrets.token_hex(12)}"
