"""Reading files that somebody else has put there: regular files alone, and never a wait for what is something else.

Opening a named pipe waits until somebody writes into it, and reading a device may never end.
"""

# Paths are strings here, as in the store.

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """A descriptor that reads a regular file, which a link may lead to (with `follow`; else that is ELOOP). Raises OSError
    for what is another kind of file: its text says which."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # open(2): a socket, or a device without a driver
            raise _other_kind("a socket or a device", path) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise _other_kind(next((name for is_one, name in _KINDS if is_one(mode)), "not a file"), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Raises OSError, as `open_regular`."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def _other_kind(what: str, path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, f"it is {what}, not a regular file", os.fspath(path))
