"""Fork workers on request, each for a client (`client.py`). `server_process` states the rules."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtbuild.driver.workers.forking.requests import close_all, parse_request, receive_request, take_over

#: The command line and the environment variables of a worker.
Command = tuple[list[str], dict[str, str]]


@dataclass
class ForkedWorker:
    """A forked worker and its client."""

    pid: int
    pidfd: int  # readable after the process has ended
    client: Any


class ForkServer:
    """Forks the workers of one kind (rules 3 to 6 of `server_process`).

    `next_client` receives a connection from the descriptor `arrivals`. `uses_gpu` is whether the workers may use a GPU
    (rule 6).
    """

    #: A part of the path of CUDA's driver.
    GPU_DRIVER = "libcuda.so"

    #: Whether this process already has the environment variables of its workers.
    has_environment = False

    def __init__(self, arrivals: int, next_client: Callable[[int], Any], *, uses_gpu: bool = False) -> None:
        self._arrivals = arrivals
        self._next_client = next_client
        self._uses_gpu = uses_gpu
        self._workers: list[ForkedWorker] = []

    def serve(self) -> Command | None:
        """Serve requests. Returns the worker's `Command` in a forked worker, and None in the server at its end."""
        while not self.is_done:
            watched = select.poll()
            watched.register(0, select.POLLIN)
            for descriptor in self.descriptors():
                watched.register(descriptor, select.POLLIN)
            for forked in self._workers:
                watched.register(forked.client.fileno(), select.POLLIN)  # readable: the client has ended
                watched.register(forked.pidfd, select.POLLIN)
            ready = {descriptor for descriptor, _ in watched.poll()}
            if 0 in ready:  # checked first, because the owner closes stdin before the sockets
                self.end_all()
                return None
            for forked in list(self._workers):
                if forked.client.fileno() in ready:
                    kill_group(forked.pid)
                if forked.pidfd in ready:
                    self._send_status(forked)
            started = self.handle(ready)
            if started is not None:
                return started
        return None

    @property
    def is_done(self) -> bool:
        """Whether all workers have ended, and no more workers will be forked."""
        return False

    def descriptors(self) -> list[int]:
        """The descriptors whose input `handle` reads."""
        return [self._arrivals]

    def handle(self, ready: set[int]) -> Command | None:
        """Read the descriptors that are ready. Returns the worker's `Command` in a forked worker, otherwise None."""
        if self._arrivals not in ready:
            return None
        client = self._next_client(self._arrivals)
        streams, request = receive_request(client)
        return self.fork_worker(client, streams, request)

    def end_all(self) -> None:
        """Kill the workers, and wait for their end, so that their CPU time counts as CPU time of the build."""
        for forked in self._workers:
            kill_group(forked.pid)
            os.waitpid(forked.pid, 0)

    def _send_status(self, forked: ForkedWorker) -> None:
        kill_group(forked.pid)  # kills the processes that the worker started; the pid is valid until waitpid
        _, status = os.waitpid(forked.pid, 0)
        with contextlib.suppress(OSError):
            forked.client.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
        forked.client.close()
        os.close(forked.pidfd)
        self._workers.remove(forked)

    def fork_worker(self, client: Any, streams: list[int], request: bytes) -> Command | None:
        """Fork a worker for a client. Returns the worker's `Command` in the worker, otherwise None."""
        if not request or (self._uses_gpu and self._has_gpu_driver()):
            close_all(streams)
            client.close()  # without a reply, so the client process itself becomes the worker
            return None
        try:
            pid = os.fork()
        except OSError:
            close_all(streams)
            client.close()  # as above
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
        directory, mask, command, environment = parse_request(request)
        take_over(streams, directory, mask)
        return command, environment

    def close_descriptors(self) -> None:
        """In a fork of the server, close the descriptors of the server."""
        os.close(self._arrivals)
        for forked in self._workers:
            forked.client.close()
            os.close(forked.pidfd)
        self._workers.clear()

    def _has_gpu_driver(self) -> bool:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return self.GPU_DRIVER in maps.read()


def kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # before `setsid`, a worker is in the server's group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
