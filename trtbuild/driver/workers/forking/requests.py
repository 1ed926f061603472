"""Receive the request of a client, and take over the client's streams, directory, umask, environment and arguments.

`client.py` sends the request. A server receives it and forks a worker, which takes over these properties. A watcher
(`trtbuild watch`) does the same with a copy of itself.
"""

from __future__ import annotations

import _socket
import marshal
import os
import sys
from typing import Any

#: The largest message that comes with a connection (`receive_message`).
MOST_MESSAGE_BYTES = 1 << 16


def take_over(streams: list[int], directory: str, mask: int) -> None:
    """Take over the streams, the directory and the umask of a client."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.umask(mask)


def set_environment(environment: dict[str, str], set_by_libraries: dict[str, str]) -> None:
    """Replace the environment variables of this process, and add those of `set_by_libraries` that are missing.

    `set_by_libraries` are the variables that libraries have set while they were imported.
    """
    os.environ.clear()
    os.environ.update(environment)
    for name, value in set_by_libraries.items():
        os.environ.setdefault(name, value)


def receive_client(control: int) -> Any:
    """Receive the next connection from the owner of the server (the process that started it), through socket `control`."""
    return receive_message(control)[1]


def receive_message(control: int) -> tuple[bytes, Any]:
    """Receive the next message from the owner of the server, and the connection that comes with the message."""
    owner = _socket.socket(fileno=control)
    try:
        message, ((_, _, number),), _, _ = owner.recvmsg(
            MOST_MESSAGE_BYTES, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC
        )
    finally:
        owner.detach()
    return message, _socket.socket(fileno=int.from_bytes(number, sys.byteorder))


def receive_request(client: Any) -> tuple[list[int], bytes]:
    """Return the descriptors of streams and the bytes that a client sends; no bytes if the client has ended."""
    streams: list[int] = []
    request = b""
    size = None
    while size is None or len(request) < size:
        try:
            # three descriptors of four bytes each; the message begins with its size, which has four bytes, too
            part, ancillary, _, _ = client.recvmsg(1 << 16, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            part, ancillary = b"", []
        for _, _, data in ancillary:
            streams += [int.from_bytes(data[start : start + 4], sys.byteorder) for start in range(0, len(data), 4)]
        if not part:
            return streams, b""
        request += part
        if size is None and len(request) >= 4:
            size, request = int.from_bytes(request[:4], sys.byteorder), request[4:]
    return streams, request


def parse_request(request: bytes) -> tuple[str, int, list[str], dict[str, str]]:
    """Return the directory, the umask, the command line and the environment variables of a client.

    Raises ValueError, TypeError, AttributeError or EOFError for bytes that are not a request."""
    directory, mask, words, environment = marshal.loads(request)
    return (
        os.fsdecode(directory),
        mask,
        list(map(os.fsdecode, words)),
        {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
    )


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def set_arguments(command: list[str]) -> None:
    """Set the arguments of this process to those of a worker: the last three of `command` (kind, store, project)."""
    worker: Any = sys.modules["__main__"]
    sys.argv[:] = [worker.__file__, *command[-3:]]
    sys.orig_argv[:] = command
