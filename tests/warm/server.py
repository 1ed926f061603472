"""``server.py KIND DESCRIPTOR``: workers that need not load torch, for each is a copy of this process, which has it.

Rules
1. A worker that this server makes answers as one that `trtbuild.driver.workers.pool` starts: the same code runs, with the
   same modules loaded, and with the descriptors, variables, directory and arguments of the client (`client.py`).
2. Torch is loaded when the first client asks. No user code runs here, and only the main thread runs Python; so a copy knows
   nothing of any job before its own.
3. A worker is a session of its own. It is killed, with all that it started, when its client goes away; what it started is
   killed when it ends by itself; the client is told its exit status.
4. A worker has none of the server's descriptors.
5. The server ends, and its workers with it, when standard input ends: its owner holds the other end, so the kernel closes
   that one too when the owner is killed.
6. Nothing is imported here that a worker would not have loaded before torch: a trace looks at what was there.
"""

from __future__ import annotations

import _socket
import contextlib
import gc
import marshal
import os
import runpy  # noqa: F401 (a worker that is started with -m has loaded it)
import select
import signal
import sys
from dataclasses import dataclass
from typing import Any

if sys.version_info < (3, 11):  # which have no -P
    del sys.path[0]

from trtbuild.driver.workers import worker

#: A process has one main module, and a worker's is this one.
worker.__name__ = "__main__"
_this = sys.modules["__main__"]  # else it would be collected
sys.modules["__main__"] = sys.modules.pop("trtbuild.driver.workers.worker")


@dataclass
class Copy:
    """A worker, and the client that it works for."""

    pid: int
    ended: int  # a descriptor of the process, which can be read when it has ended
    client: Any


class Server:
    """Rules 2 to 5. The owner made the listening socket, so that a client can connect before this process runs."""

    def __init__(self, kind: str, listening: int) -> None:
        self._kind = kind
        self._listening = _socket.socket(fileno=listening)
        self._copies: list[Copy] = []
        self._variables: dict[str, str] | None = None  # those that torch sets while it is loaded

    def run(self) -> list[str] | None:
        """In a copy: the arguments of its worker. In the server: None, at its end."""
        while True:
            watched = select.poll()
            watched.register(0, select.POLLIN)
            watched.register(self._listening.fileno(), select.POLLIN)
            for copy in self._copies:
                watched.register(copy.client.fileno(), select.POLLIN)  # a client says nothing more: it has gone away
                watched.register(copy.ended, select.POLLIN)
            ready = {descriptor for descriptor, _ in watched.poll()}
            if 0 in ready:
                for copy in self._copies:
                    _kill_group(copy.pid)
                return None
            for copy in list(self._copies):
                if copy.client.fileno() in ready:
                    _kill_group(copy.pid)
                if copy.ended in ready:
                    self._tell(copy)
            if self._listening.fileno() in ready:
                arguments = self._accept()
                if arguments is not None:
                    return arguments

    def _tell(self, copy: Copy) -> None:
        _kill_group(copy.pid)  # what it started; it is not waited for yet, so the number is still its own
        _, status = os.waitpid(copy.pid, 0)
        with contextlib.suppress(OSError):
            copy.client.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
        copy.client.close()
        os.close(copy.ended)
        self._copies.remove(copy)

    def _accept(self) -> list[str] | None:
        """Make a worker for the next client. In the copy: its arguments."""
        descriptor, _ = self._listening._accept()
        client = _socket.socket(fileno=descriptor)
        streams, told = _received(client)
        if not told:
            client.close()
            return None
        if self._variables is None:
            self._prepare()
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            self._copies.append(Copy(pid, os.pidfd_open(pid), client))
            return None
        self._listening.close()
        client.close()
        for copy in self._copies:
            copy.client.close()
            os.close(copy.ended)
        return self._begin(streams, *marshal.loads(told))

    def _prepare(self) -> None:
        from trtbuild.driver.workers import handlers

        before = dict(os.environ)
        gc.disable()  # as a worker does it
        handlers.prepare(self._kind)
        gc.freeze()
        gc.enable()
        self._variables = {name: value for name, value in os.environ.items() if before.get(name) != value}

    def _begin(
        self, streams: list[int], directory: str, arguments: list[str], environment: dict[str, str]
    ) -> list[str]:
        """Give this copy all that its client has."""
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        for name, value in (self._variables or {}).items():
            os.environ.setdefault(name, value)
        if self._kind == "trace":
            from trtbuild.stages.trace.run import prepare

            started: Any = prepare().environment
            started.clear()
            started.update(environment)
        sys.argv[1:] = arguments
        return arguments


def _received(client: Any) -> tuple[list[int], bytes]:
    """The descriptors and the bytes that a client sends; no bytes where it has gone away."""
    streams: list[int] = []
    told = b""
    size = None
    while size is None or len(told) < size:
        part, more, _, _ = client.recvmsg(1 << 16, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
        if not part:
            return streams, b""
        for _, _, data in more:
            streams += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
        told += part
        if size is None:
            size, told = int.from_bytes(told[:4], sys.byteorder), told[4:]
    return streams, told


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a copy that has not come to `setsid` has no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


arguments = Server(sys.argv[1], int(sys.argv[2])).run()
if arguments is not None:
    sys.exit(worker.main(arguments))
