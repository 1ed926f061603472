"""Read files, and refuse pipes, devices and sockets without waiting.

Another program may have put one of these at a path. Opening a named pipe would wait for a writer, and reading a device
might never end.
"""

from __future__ import annotations

import errno
import os
import stat

_OTHER_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: str | os.PathLike[str], *, follow_links: bool = True) -> int:
    """Open a regular file for reading, and return its descriptor. If `follow_links` is False, a symbolic link is refused.

    Raises OSError: ELOOP for a refused link, and an error that names the kind for a file of another kind."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # open(2): a socket, or a device without a driver
            raise _wrong_kind_error("a socket or a device", path) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            kind = next((kind for is_kind, kind in _OTHER_KINDS if is_kind(mode)), "a file of another kind")
            raise _wrong_kind_error(kind, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def _wrong_kind_error(kind: str, path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))
