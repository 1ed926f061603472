"""The socket of a watcher, and the checks with which a client and a watcher recognize each other."""

# Paths are strings here: importing pathlib would take longer than the rest of a client.
# ruff: noqa: PTH115

from __future__ import annotations

import os
import resource
import socket
import stat
import struct
import sys
from binascii import crc32

from trtbuild import null_build

#: The folder of the sockets, below ``XDG_RUNTIME_DIR``.
FOLDER = "trtbuild"


def socket_path(project: str) -> str | None:
    """Return the path of the socket for a project; None if ``XDG_RUNTIME_DIR`` is not an absolute path."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not base.startswith("/"):
        return None
    name = f"{crc32(os.fsencode(os.path.realpath(project))):08x}.socket"
    return os.path.join(base, FOLDER, name)


def is_private(folder: str) -> bool:
    """Whether a directory belongs to this user, and no other user can open it."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def is_own_peer(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this user (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


def process_properties() -> list[str]:
    """Return the properties of this process that must be equal in a client and its watcher.

    A build inherits the interpreter, trtbuild's code, the groups, the processors, the namespaces and the resource limits
    from the watcher, and cannot change them. For example, torch has chosen its number of threads for the processors of the
    watcher, and a path may name another file in another namespace.
    """
    kinds = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [f"{name} {resource.getrlimit(getattr(resource, name))}" for name in kinds]
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user")]
    identity = [os.getgid(), sorted(os.getgroups()), sorted(os.sched_getaffinity(0))]
    return [*null_build.interpreter(), os.path.realpath(null_build.__file__), *map(str, identity), *spaces, *limits]


def say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
