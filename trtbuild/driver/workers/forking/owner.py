"""Start the servers from which workers are forked, and connect clients to them. `server_process` is their program."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trtbuild.driver.workers.environments import differing_variable
from trtbuild.driver.workers.kinds import FORKS, NO_IMPORTS, WorkerKind

#: Whether this system can fork workers. The servers need descriptors of processes (Linux 5.3).
CAN_FORK_WORKERS = FORKS and hasattr(os, "pidfd_open")

#: The kinds of workers that are forked from a process that has loaded torch.
FORKED_KINDS: tuple[WorkerKind, ...] = ("trace", "torch")

#: If the servers have not ended after this many seconds, they are killed. They do not end while they load torch.
_EXIT_TIMEOUT_S = 2.0

_CLIENT = Path(__file__).with_name("client.py")
_SERVER = Path(__file__).with_name("server_process.py")

#: The servers that `trtbuild watch` has started. Its forked copies, which run the builds, use them, too.
_lent_servers: list[ForkServers] = []


def lend_servers(servers: ForkServers) -> None:
    """Let forked copies of this process use `servers`, which this process has started."""
    _lent_servers[:] = [servers]


def lent_servers() -> ForkServers | None:
    """Return the servers that the process from which this process was forked has lent, or None."""
    return _lent_servers[0] if _lent_servers and not _lent_servers[0].is_own else None


class ForkServers:
    """A server for each kind of `FORKED_KINDS`, with the environment `environment`, in a new session. Thread-safe."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._owner = os.getpid()
        self._environment = dict(environment)
        self._controls: dict[WorkerKind, socket.socket] = {}
        server_ends: list[socket.socket] = []
        for kind in FORKED_KINDS:
            self._controls[kind], server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server_ends.append(server_end)
        try:
            with tempfile.TemporaryFile(prefix="trtbuild-log-") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(_SERVER), *(str(end.fileno()) for end in server_ends)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=dict(environment),
                    cwd=folder,
                    pass_fds=[end.fileno() for end in server_ends],
                    start_new_session=True,
                )
        except BaseException:
            self._close_controls()
            raise
        finally:
            for server_end in server_ends:
                server_end.close()

    @property
    def pid(self) -> int:
        """The id of the process that has loaded torch."""
        return self._process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process has started the servers."""
        return os.getpid() == self._owner

    @property
    def is_alive(self) -> bool:
        """Whether the servers run. Always True for lent servers: a client notices if its server has ended."""
        return not self.is_own or self._process.poll() is None

    def can_fork(self, kind: WorkerKind, environment: Mapping[str, str]) -> bool:
        """Whether a worker with these environment variables can be forked. They are compared with those of the servers.

        ``CUDA_VISIBLE_DEVICES`` may differ for torch workers, because their server has not loaded CUDA's driver, which
        reads it.
        """
        free = ("CUDA_VISIBLE_DEVICES",) if kind == "torch" else ()
        return differing_variable(self._environment, environment, *free) is None

    def connect(self, kind: WorkerKind, imports: bytes = NO_IMPORTS) -> socket.socket:
        """Return a connection to the server of `kind`, for a client. If the server has died, the client notices it.

        `imports` may be a `trtbuild.driver.workers.forking.preloading.PreloadRequest` as bytes, for a trace worker.
        """
        client_end, server_end = socket.socketpair()
        with server_end, contextlib.suppress(OSError):
            socket.send_fds(self._controls[kind], [imports], [server_end.fileno()], socket.MSG_DONTWAIT)
        return client_end

    def close(self) -> None:
        """End the servers and all workers that were forked from them. Lent servers stay."""
        if not self.is_own:
            return
        if self._process.stdin is not None:  # closed first, because a server fails if its socket ends before stdin
            self._process.stdin.close()
        self._close_controls()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # both servers; the kernel then ends their workers
            self._process.wait()

    def _close_controls(self) -> None:
        for control in self._controls.values():
            control.close()


def client_command(target: str, command: list[str]) -> list[str]:
    """Return the command line of the client for a worker. `target` is the descriptor or the path of a socket."""
    return [sys.executable, "-I", "-S", str(_CLIENT), target, *command]
