"""The socket of a watcher, and the identity of a program: a client and its watcher compare these values."""

# Paths are strings here: importing pathlib would take longer than the rest of a client.

from __future__ import annotations

import os
import resource
import socket
import stat
import struct
import sys
from binascii import crc32

from trtbuild import null_build

FOLDER = "trtbuild"

#: Variables that may differ: those of a shell's session, and those that a worker does not get (``TRTBUILD_…``). All other
#: variables are compared, because torch may have read them while the watcher loaded it.
FREE_VARIABLES = frozenset(
    (
        *(
            "_",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "COLUMNS",
            "LINES",
            "WINDOWID",
            "DISPLAY",
            "COLORTERM",
            "STY",
            "TMUX",
            "TMUX_PANE",
        ),
        *("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "VTE_VERSION", "GPG_TTY", "SSH_TTY"),
        *("SSH_CLIENT", "SSH_CONNECTION", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "NO_COLOR", "FORCE_COLOR", "MAKEFLAGS"),
        *("MAKELEVEL", "MFLAGS", "MAKE_TERMOUT", "MAKE_TERMERR"),
    )
)
FREE_PREFIX = "TRTBUILD_"


def socket_path(project: str) -> str | None:
    """Return the path of the socket for a project; None if this system has no directory for sockets of this user."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not base.startswith("/"):
        return None
    name = f"{crc32(os.fsencode(os.path.realpath(project))):08x}.socket"
    return os.path.join(base, FOLDER, name)


def is_private(folder: str) -> bool:
    """Whether a directory belongs to this user, and other users cannot open it."""
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


def program() -> list[str]:
    """The interpreter, the files of trtbuild, and what a copy gets from its watcher: the umask and resource limits."""
    mask = os.umask(0o077)
    os.umask(mask)
    kinds = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [f"{name} {resource.getrlimit(getattr(resource, name))}" for name in kinds]
    return [*null_build.interpreter(), os.path.realpath(null_build.__file__), f"umask {mask:o}", *limits]


def differing_variable(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Return the first variable, by name, that differs and is not free; None if there is no such variable."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in FREE_VARIABLES and not name.startswith(FREE_PREFIX) and ours.get(name) != theirs.get(name):
            return name
    return None


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
