"""The server of trace workers, and processes that have imported the libraries of models. Workers are forked from both.

Rules
1. The owner of the server may send imports (`PreloadRequest`) together with a client's connection. The server then forks
   a process, which imports these libraries, and which forks the worker. Such a preloaded process stays for later clients
   with the same imports, environment variables, arguments, directory and umask. So no model runs in a process with
   libraries that only another model imports.
2. When a file of its imports has changed, a preloaded process is out of date, and a new process replaces it. If the
   imports fail, or if the process must not be kept (`trtbuild.stages.trace.discovery.preloading`), the server forks the
   worker itself.
3. The `MAX_PROCESSES` last used processes stay, and so do older processes with waiting clients. Each other process ends
   when its workers have ended.
4. The server passes the client's connection and streams to the process, and keeps them until the process answers. So no
   client is lost if a process ends.
5. Each process starts a new session. If it ends without the answer `STALE`, the server kills the processes that its
   imports have started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtbuild.driver.workers.forking import requests
from trtbuild.driver.workers.forking.server import Command, ForkServer, kill_group
from trtbuild.driver.workers.kinds import NO_IMPORTS

MAX_PROCESSES = 3

#: Each trace shows the output of the imports again, up to this many bytes.
_MAX_OUTPUT_BYTES = 1 << 16

#: Answers of a process: its imports are done, it has forked a worker, or it is out of date.
READY, FORKED, STALE = b"r", b"f", b"s"


@dataclass(frozen=True)
class PreloadRequest:
    """The import statements at the beginning of a source's code. `roots` are the directories that are searched for the
    source's module."""

    roots: tuple[str, ...]
    statements: tuple[str, ...]

    def to_bytes(self) -> bytes:
        return json.dumps([self.roots, self.statements]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> PreloadRequest:
        roots, statements = json.loads(data)
        return PreloadRequest(tuple(roots), tuple(statements))


@dataclass
class WaitingClient:
    """A client for which no worker has been forked yet."""

    client: Any
    streams: list[int]
    request: bytes

    def close(self) -> None:
        requests.close_all(self.streams)
        self.client.close()


@dataclass
class PreloadedProcess:
    """The server's data about a preloaded process. `channel` is connected to the process."""

    pid: int
    channel: socket.socket
    #: Whether the process has done its imports.
    is_ready: bool = False
    #: The clients that were passed to the process, in this order.
    waiting: deque[WaitingClient] = field(default_factory=deque)


class TraceServer(ForkServer):
    """Forks trace workers and preloaded processes. `set_by_libraries` are the environment variables that torch has set."""

    def __init__(self, control: int, set_by_libraries: dict[str, str]) -> None:
        super().__init__(control, requests.receive_client)
        self._set_by_libraries = set_by_libraries
        #: (imports, request) → process. The most recently used process is the last.
        self._processes: dict[tuple[bytes, bytes], PreloadedProcess] = {}
        #: The keys of `_processes` for which a process has failed. The server itself forks their workers.
        self._failed: set[tuple[bytes, bytes]] = set()
        #: The ids of processes that get no more clients, but may still have workers.
        self._retired: list[int] = []
        #: (imports, client), for the clients that `handle` passes to `_start` next.
        self._next: deque[tuple[bytes, WaitingClient]] = deque()

    def descriptors(self) -> list[int]:
        return [self._arrivals, *(process.channel.fileno() for process in self._processes.values())]

    def handle(self, ready: set[int]) -> Command | None:
        self._retired = [pid for pid in self._retired if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        for key, process in list(self._processes.items()):
            if process.channel.fileno() in ready:
                self._read_answer(key, process)
        if self._arrivals in ready:
            imports, client = requests.receive_message(self._arrivals)
            self._next.append((imports, WaitingClient(client, *requests.receive_request(client))))
        while self._next:
            started = self._start(*self._next.popleft())
            if started is not None:
                return started
        return None

    def end_all(self) -> None:
        super().end_all()
        for process in self._processes.values():
            if not process.is_ready:  # during its imports, a process does not notice the end of the server's owner
                kill_group(process.pid)
        for pid in [*self._retired, *(process.pid for process in self._processes.values())]:
            os.waitpid(pid, 0)

    def close_descriptors(self) -> None:
        super().close_descriptors()
        for process in self._processes.values():
            process.channel.close()
            for waiting in process.waiting:
                waiting.close()
        for _, waiting in self._next:
            waiting.close()

    def _start(self, imports: bytes, waiting: WaitingClient) -> Command | None:
        """Pass a client to the process with its imports, or fork its worker here. Returns as `handle` does."""
        key = imports, waiting.request
        if imports == NO_IMPORTS or not waiting.request or key in self._failed:
            return self.fork_worker(waiting.client, waiting.streams, waiting.request)
        process = self._processes.pop(key, None)
        if process is None:
            server_end, process_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                pid = os.fork()
            except OSError:
                server_end.close()
                process_end.close()
                return self.fork_worker(waiting.client, waiting.streams, waiting.request)
            if pid == 0:
                server_end.close()
                waiting.close()
                self.close_descriptors()
                self.has_environment = True
                return self._serve_as_process(process_end, *key)
            process_end.close()
            process = PreloadedProcess(pid, server_end)
        self._processes[key] = process
        process.waiting.append(waiting)
        with contextlib.suppress(OSError):  # the process has ended, which `_read_answer` notices
            # descriptors need a message of at least one byte; the process ignores the byte
            socket.send_fds(process.channel, [b"c"], [waiting.client.fileno(), *waiting.streams])
        for old in list(self._processes)[:-MAX_PROCESSES]:
            if not self._processes[old].waiting:
                self._retire(old)
        return None

    def _read_answer(self, key: tuple[bytes, bytes], process: PreloadedProcess) -> None:
        """Read the answer of a process. If it has ended or is out of date, its clients are passed to `_start` again."""
        try:
            answer = process.channel.recv(1)
        except OSError:
            answer = b""
        if answer == READY:
            process.is_ready = True
        elif answer == FORKED:
            process.waiting.popleft().close()
        else:
            self._next.extend((key[0], waiting) for waiting in process.waiting)
            process.waiting.clear()
            if answer != STALE:
                self._failed.add(key)
                kill_group(process.pid)  # the pid is still valid before waitpid
            self._retire(key)

    def _retire(self, key: tuple[bytes, bytes]) -> None:
        process = self._processes.pop(key)
        process.channel.close()
        self._retired.append(process.pid)

    def _serve_as_process(self, channel: socket.socket, imports: bytes, request: bytes) -> Command:
        """Import libraries and serve clients, in a fork of the server. Returns only in a forked worker."""
        worker: Any = sys.modules["__main__"]
        worker.end_with_parent()
        os.setsid()
        directory, mask, command, environment = requests.parse_request(request)
        os.chdir(directory)
        os.umask(mask)
        requests.set_environment(environment, self._set_by_libraries)
        requests.set_arguments(command)
        importlib.invalidate_caches()
        try:
            is_current = _import(PreloadRequest.from_bytes(imports), command, environment)
        except BaseException:
            os._exit(1)
        channel.send(READY)
        started = PreloadedServer(channel, request, is_current).serve()
        if started is None:
            os._exit(0)
        return started


def _import(request: PreloadRequest, command: list[str], environment: dict[str, str]) -> Callable[[], bool]:
    """Do the imports, as a worker with this command and this environment does. Return `Preloaded.is_current`.

    Raises the errors of the imports, and ValueError if this process must not be kept.
    """
    worker: Any = sys.modules["__main__"]
    from trtbuild.stages.trace import run

    run.note_environment(environment)
    output = os.memfd_create("output")
    os.dup2(output, 1)
    os.dup2(output, 2)
    worker.replace_streams()
    kind, store_root, project = command[-3:]
    # like a worker, load these modules before user code runs
    worker.job_handler(kind, Path(store_root), Path(project), sys.stdout)
    from trtbuild.stages.trace.discovery import preloading

    state, before = run.prepare(), preloading.ProcessCounts.now()
    gc.disable()
    try:
        preloaded = preloading.preload(
            Path(project), request.roots, request.statements, state.environment, state.modules
        )
    finally:
        gc.freeze()  # forked workers share the pages of the libraries
        gc.enable()
    reason = preloading.why_not_kept(preloaded, before)
    if reason is not None:
        raise ValueError(reason)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    preloaded.output = os.pread(output, _MAX_OUTPUT_BYTES, 0)
    os.close(output)
    return preloaded.is_current


class PreloadedServer(ForkServer):
    """Forks workers for clients with the same request, while `is_current` returns True."""

    def __init__(self, channel: socket.socket, request: bytes, is_current: Callable[[], bool]) -> None:
        super().__init__(channel.fileno(), requests.receive_client)
        self._channel = channel
        self._request = request
        self._is_current = is_current
        self._is_open = True

    @property
    def is_done(self) -> bool:
        return not self._is_open and not self._workers

    def descriptors(self) -> list[int]:
        return [self._arrivals] if self._is_open else []

    def handle(self, ready: set[int]) -> Command | None:
        if self._arrivals not in ready or not self._is_open:
            return None
        message, descriptors, _, _ = socket.recv_fds(self._channel, 1, 4)  # the client's connection and three streams
        if not message:
            self._is_open = False
            return None
        client, *streams = descriptors
        waiting = WaitingClient(socket.socket(fileno=client), streams, self._request)
        if not self._is_current():
            self._is_open = False
            waiting.close()
            self._channel.send(STALE)
            return None
        started = self.fork_worker(waiting.client, waiting.streams, waiting.request)
        if started is None:
            self._channel.send(FORKED)
        return started
