"""``fork_server.py TRACE TORCH``: a process that has loaded torch, and forks the workers that need it.

TRACE and TORCH are the numbers of sockets. The server receives the connections of clients (`fork_client.py`) from them.

Rules
1. A forked worker behaves like a new one:
   * From its client it gets the streams, the variables, the directory, the umask and the arguments.
   * Resource limits, priority, groups, processors and namespaces are those of the server. In a build, server and client
     have the same parent. A watcher compares them (`trtbuild.driver.watching.place.program`).
   * Python and torch read variables while they start: the seed of hashes, the locale, ``OMP_NUM_THREADS``,
     ``LD_LIBRARY_PATH``. So the variables of server and client must be equal (`ForkServers.suit`).
   * It has the modules that `handlers.prepare` loads, with their warning filters and exit functions. A new worker loads
     them, too, before its first job. The server handles no signal, and blocks none.
   * A forked torch worker also has the tables that a new one fills during its first job (`handlers.fill_tables`).
   * Import caches are cleared. No other cache of the server has seen the project.
   * The only threads that the server may have are those of libraries that handle a fork, such as OpenBLAS. A new trace
     worker forks after the same imports, too.
2. The server runs no user code, and only its main thread runs Python. The first copy of the server loads the modules of
   torch workers and forks these. So a trace worker never has modules that only torch workers need: a trace would record
   them as dependencies.
3. Each worker is a new session. When its client ends, the worker and all processes that it started are killed. When the
   worker ends, the processes that it started are killed, and the client receives the exit status.
4. A worker does not have the server's descriptors.
5. When standard input ends, the server and its workers end. The owner of the server has the other end of the pipe, which
   the kernel closes, too, if the owner is killed. The end of the thread that started the server does not end it.
6. The server never forks a process that may use a GPU after CUDA's driver was loaded in the server, because the driver does
   not work after a fork. The client then starts a new worker.
7. This file imports only modules that a worker loads before torch, because a trace records the modules loaded before it.
"""

from __future__ import annotations

import _socket
import contextlib
import gc
import importlib
import marshal
import os
import runpy  # noqa: F401 (also a worker that is started with -m has loaded it)
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__" and sys.version_info < (3, 11):  # these versions have no option -P
    del sys.path[0]


#: The server reads this much of a client's message.
MOST_MESSAGE_BYTES = 1 << 16

#: The command line of a worker, and its variables.
Command = tuple[list[str], dict[str, str]]


@dataclass
class ForkedWorker:
    """A forked worker and its client."""

    pid: int
    ended: int  # a pidfd: readable after the process has ended
    client: Any


class ForkServer:
    """Forks the workers of one kind (rules 3 to 6). `arrivals` is the descriptor from which `next_client` gets connections.

    The name in `GPU_DRIVER` is part of the path of CUDA's driver.
    """

    GPU_DRIVER = "libcuda.so"

    #: Whether this process has the variables of its workers already.
    has_environment = False

    def __init__(self, arrivals: int, next_client: Callable[[int], Any], *, uses_gpu: bool = False) -> None:
        self._arrivals = arrivals
        self._next_client = next_client
        self._uses_gpu = uses_gpu
        self._workers: list[ForkedWorker] = []

    def serve(self) -> Command | None:
        """Serve requests. Returns the command and the variables in a forked worker, and None at the end of the server."""
        while not self.is_done:
            watched = select.poll()
            watched.register(0, select.POLLIN)
            for descriptor in self.descriptors():
                watched.register(descriptor, select.POLLIN)
            for worker_process in self._workers:
                watched.register(worker_process.client.fileno(), select.POLLIN)  # readable: the client has ended
                watched.register(worker_process.ended, select.POLLIN)
            ready = {descriptor for descriptor, _ in watched.poll()}
            if 0 in ready:  # first: the owner closes the sockets, too
                self.end_all()
                return None
            for worker_process in list(self._workers):
                if worker_process.client.fileno() in ready:
                    kill_group(worker_process.pid)
                if worker_process.ended in ready:
                    self._send_status(worker_process)
            started = self.handle(ready)
            if started is not None:
                return started
        return None

    @property
    def is_done(self) -> bool:
        """Whether no further worker is going to be forked, and all have ended."""
        return False

    def descriptors(self) -> list[int]:
        """The descriptors whose input `handle` reads."""
        return [self._arrivals]

    def handle(self, ready: set[int]) -> Command | None:
        """Read the descriptors that are ready. Returns the command and the variables in a forked worker."""
        if self._arrivals not in ready:
            return None
        client = self._next_client(self._arrivals)
        streams, request = receive_request(client)
        return self.fork_worker(client, streams, request)

    def end_all(self) -> None:
        """Kill the workers, and wait for their end: their CPU time then counts as that of the build."""
        for worker_process in self._workers:
            kill_group(worker_process.pid)
            os.waitpid(worker_process.pid, 0)

    def _send_status(self, worker_process: ForkedWorker) -> None:
        kill_group(worker_process.pid)  # the processes that it started; the pid is still valid before waitpid
        _, status = os.waitpid(worker_process.pid, 0)
        with contextlib.suppress(OSError):
            worker_process.client.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
        worker_process.client.close()
        os.close(worker_process.ended)
        self._workers.remove(worker_process)

    def fork_worker(self, client: Any, streams: list[int], request: bytes) -> Command | None:
        """Fork a worker for a client. Returns its command and variables in the worker, and None in the server."""
        if not request or (self._uses_gpu and self._has_gpu_driver()):
            close_all(streams)
            client.close()
            return None
        try:
            pid = os.fork()
        except OSError:
            close_all(streams)
            client.close()  # the client starts a new process
            return None
        if pid:
            close_all(streams)
            self._workers.append(ForkedWorker(pid, os.pidfd_open(pid), client))
            with contextlib.suppress(OSError):
                client.send(b"1")
            return None
        client.close()
        self.close_descriptors()
        os.setsid()
        directory, mask, command, environment = marshal.loads(request)
        take_over(streams, directory, mask)
        return command, environment

    def close_descriptors(self) -> None:
        """Close the descriptors of the server in a fork of it."""
        os.close(self._arrivals)
        for worker_process in self._workers:
            worker_process.client.close()
            os.close(worker_process.ended)
        self._workers.clear()

    def _has_gpu_driver(self) -> bool:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return self.GPU_DRIVER in maps.read()


def take_over(streams: list[int], directory: str, mask: int) -> None:
    """Take over the streams, the directory and the umask of a client."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.umask(mask)


def set_environment(environment: dict[str, str], set_by_libraries: dict[str, str]) -> None:
    """Replace the variables of this process. `set_by_libraries` are those that libraries have set at their import."""
    os.environ.clear()
    os.environ.update(environment)
    for name, value in set_by_libraries.items():
        os.environ.setdefault(name, value)


def received_client(control: int) -> Any:
    """Return the next connection that the owner of the server passes through the socket `control`."""
    return received_message(control)[1]


def received_message(control: int) -> tuple[bytes, Any]:
    """Return the next message of the owner of the server, and the connection that it passes."""
    owner = _socket.socket(fileno=control)
    try:
        message, ((_, _, number),), _, _ = owner.recvmsg(
            MOST_MESSAGE_BYTES, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC
        )
    finally:
        owner.detach()
    return message, _socket.socket(fileno=int.from_bytes(number, sys.byteorder))


def receive_request(client: Any) -> tuple[list[int], bytes]:
    """The descriptors and the bytes that a client sends. No bytes if the client has ended."""
    streams: list[int] = []
    request = b""
    size = None
    while size is None or len(request) < size:
        try:
            part, more, _, _ = client.recvmsg(1 << 16, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            part, more = b"", []
        for _, _, data in more:
            streams += [int.from_bytes(data[start : start + 4], sys.byteorder) for start in range(0, len(data), 4)]
        if not part:
            return streams, b""
        request += part
        if size is None and len(request) >= 4:
            size, request = int.from_bytes(request[:4], sys.byteorder), request[4:]
    return streams, request


def close_all(descriptors: list[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def kill_group(pid: int) -> None:
    """Kill a forked process and all processes of its session."""
    for kill in (os.killpg, os.kill):  # before `setsid`, a worker has no process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def load(prepare: Callable[[], None]) -> dict[str, str]:
    """Load libraries with `prepare`. Returns the variables that they have set.

    If that fails, the first job of a worker fails in the same way, and reports the error.
    """
    before = dict(os.environ)
    gc.disable()  # imported modules are not garbage, and repeated collections make the import of torch slower
    with contextlib.suppress(Exception):
        prepare()
    gc.freeze()  # forked workers share the pages of these objects
    gc.enable()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def _has_owner() -> bool:
    """Whether the owner of the server still needs it (rule 5)."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    return not watched.poll(0)


def _wait_for(arrivals: int) -> None:
    """Wait for the first client, or for the end of the server."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    watched.register(arrivals, select.POLLIN)
    watched.poll()


def main(trace: int, torch: int) -> int:
    """Load torch, then serve trace workers; a copy of this process serves torch workers."""
    from trtbuild.driver.workers import worker

    worker.__name__ = "__main__"  # the main module of a worker process is the module of workers
    this = sys.modules["__main__"]  # keeps the module alive
    sys.modules["trtbuild.driver.workers.fork_server"] = this
    sys.modules["__main__"] = sys.modules.pop("trtbuild.driver.workers.worker")
    from trtbuild.driver.workers import handlers

    set_by_libraries = load(handlers.prepare_trace)
    server_pid, copy = os.getpid(), os.fork()
    is_copy = copy == 0
    os.close(trace if is_copy else torch)
    if is_copy:
        worker.end_with_parent()
        _wait_for(torch)
        set_by_libraries |= load(handlers.prepare_torch)
        if _has_owner():  # a build that has ended waits for its servers
            set_by_libraries |= load(handlers.fill_tables)
    if is_copy:
        server = ForkServer(torch, received_client, uses_gpu=True)
    else:
        from trtbuild.driver.workers.preloading import TraceServer

        server = TraceServer(trace, set_by_libraries)
    started = server.serve()
    if started is None:
        if not is_copy and os.getpid() == server_pid:
            os.waitpid(copy, 0)
        os._exit(0)  # Python would free all modules first
    del this
    command, environment = started
    if not server.has_environment:
        set_environment(environment, set_by_libraries)
    return run_worker(command, environment, is_trace=not is_copy)


def set_arguments(command: list[str]) -> None:
    """Set the arguments of this process to those of a worker."""
    worker: Any = sys.modules["__main__"]
    sys.argv[:] = [worker.__file__, *command[-3:]]
    sys.orig_argv[:] = command


def run_worker(command: list[str], environment: dict[str, str], *, is_trace: bool) -> int:
    """Run a forked worker. `environment` are the variables of its client."""
    worker: Any = sys.modules["__main__"]
    set_arguments(command)
    if is_trace:
        from trtbuild.stages.trace.run import note_environment

        note_environment(environment)
    importlib.invalidate_caches()  # a file that was added within one tick of the clock would not be found otherwise
    status: int = worker.main(command[-3:])
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
