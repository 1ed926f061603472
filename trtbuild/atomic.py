"""Replace a file atomically: a reader finds all the old bytes or all the new bytes, and never a part of them.

The new bytes are written to a temporary file in the same directory. Then this file is renamed.

Promises
1. If the process is killed (``kill -9``), the path has the old file or the new file. The temporary file
   ``.<name>.<random>.tmp`` may stay behind. Nothing reads it.
2. If the disk is full, or another error occurs before the renaming, OSError is raised. The old file is unchanged, and the
   temporary file is removed. With `durable`, OSError may also be raised after the renaming.
3. If two writers replace a file at once, the file has all the bytes of the later writer. So a caller that reads a file,
   changes the content and writes it back needs a lock (`lock_beside`).
4. With `durable`, the new file survives a loss of power as soon as the call has returned (fsync). Without `durable`, a loss
   of power may leave the old file, the new file or an empty file. So use `durable` unless all readers ignore damaged files.
5. A symbolic link at the path is replaced. The file that the link leads to is unchanged.
"""

# ruff: noqa: PTH100, PTH105, PTH108 - paths are strings here, as in the store
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def replace_file(
    path: str | os.PathLike[str], data: bytes | memoryview, *, durable: bool = False, mode: int = 0o666
) -> None:
    """Replace the file at `path` by a file with the bytes `data`. Raises OSError.

    The new file has the permissions `mode`, without those that the umask forbids."""
    with replacing(path, durable=durable, mode=mode) as descriptor:
        write_all(descriptor, data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False, mode: int = 0o666) -> Iterator[int]:
    """Yield a descriptor of a temporary file, which replaces the file at `path` when the block ends.

    If the block raises an exception, the file at `path` is unchanged. Raises OSError."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = f"{folder}/.{name[:40]}.{secrets.token_hex(8)}.tmp"  # a name has at most 255 bytes, a character up to 4
    with new_file(temporary, mode) as descriptor:
        yield descriptor
        if durable:
            os.fsync(descriptor)
        os.replace(temporary, path)
    if durable:
        sync_folder(folder)


@contextlib.contextmanager
def new_file(path: str, mode: int) -> Iterator[int]:
    """Yield a descriptor for writing a new file. If the block raises an exception, the file is removed. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_beside(path: Path) -> Iterator[None]:
    """Hold a lock for changes of the file at `path`. The locked file has the suffix ``.lock``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # With O_NONBLOCK, a named pipe at this path is an error. Otherwise opening it would wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path.with_suffix(".lock"), flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, of which one call of ``os.write`` may write only a part. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(path: str) -> None:
    """Make the entries of a directory survive a loss of power, if the file system supports that. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
