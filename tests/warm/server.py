"""``server.py KIND DESCRIPTOR``: a server that has loaded all modules and forks processes, so that they start quickly.

KIND is a kind of workers, which need torch, or ``command`` for the command line, which does not need torch.

Rules
1. A worker of this server behaves like a worker of `trtbuild.driver.workers.pool`: it runs the same code with the same
   loaded modules, and with the descriptors, variables, directory and arguments of the client (`client.py`).
2. The server loads torch at the first request. It runs no user code, and only its main thread runs Python. So a worker has
   no state of an earlier job. A server of torch workers first lowers and converts a small program. A server of commands
   loads all modules of commands and runs the module of the command line in the forked process, as ``python -m`` does.
3. Each worker is a new session. When its client ends, the worker and all processes that it started are killed. When the
   worker ends, the processes that it started are killed, and the client receives the exit status.
4. A worker does not have the server's descriptors.
5. When standard input ends, the server and its workers end. The owner of the server has the other end of the pipe, which
   the kernel closes, too, if the owner is killed.
6. This file imports only modules that a worker loads before torch, because a trace records the modules loaded before it.
"""

from __future__ import annotations

import _socket
import contextlib
import gc
import marshal
import os
import runpy  # also because a worker that is started with -m has loaded it
import select
import signal
import sys
from dataclasses import dataclass
from typing import Any

if sys.version_info < (3, 11):  # these versions have no option -P
    del sys.path[0]

if sys.argv[1] != "command":
    from trtbuild.driver.workers import worker

    #: The main module of a worker process is the module of workers.
    worker.__name__ = "__main__"
    _this = sys.modules["__main__"]  # keeps the module alive
    sys.modules["__main__"] = sys.modules.pop("trtbuild.driver.workers.worker")


@dataclass
class ForkedWorker:
    """A forked worker and its client."""

    pid: int
    ended: int  # a pidfd: readable after the process has ended
    client: Any


class Server:
    """The server (rules 2 to 5). The owner creates the listening socket, so that clients can connect earlier."""

    def __init__(self, kind: str, listening: int) -> None:
        self._kind = kind
        self._listening = _socket.socket(fileno=listening)
        self._workers: list[ForkedWorker] = []
        self._variables: dict[str, str] | None = None  # the variables that torch sets at its import

    def run(self) -> list[str] | None:
        """Serve requests. Returns the arguments of the worker in a forked worker, and None at the end of the server."""
        while True:
            watched = select.poll()
            watched.register(0, select.POLLIN)
            watched.register(self._listening.fileno(), select.POLLIN)
            for worker_process in self._workers:
                watched.register(worker_process.client.fileno(), select.POLLIN)  # readable: the client has ended
                watched.register(worker_process.ended, select.POLLIN)
            ready = {descriptor for descriptor, _ in watched.poll()}
            if 0 in ready:
                for worker_process in self._workers:
                    _kill_group(worker_process.pid)
                return None
            for worker_process in list(self._workers):
                if worker_process.client.fileno() in ready:
                    _kill_group(worker_process.pid)
                if worker_process.ended in ready:
                    self._send_status(worker_process)
            if self._listening.fileno() in ready:
                arguments = self._accept()
                if arguments is not None:
                    return arguments

    def _send_status(self, worker_process: ForkedWorker) -> None:
        _kill_group(worker_process.pid)  # the processes that it started; the pid is still valid before waitpid
        _, status = os.waitpid(worker_process.pid, 0)
        with contextlib.suppress(OSError):
            worker_process.client.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
        worker_process.client.close()
        os.close(worker_process.ended)
        self._workers.remove(worker_process)

    def _accept(self) -> list[str] | None:
        """Fork a worker for the next client. Returns its arguments in the worker, and None in the server."""
        descriptor, _ = self._listening._accept()
        client = _socket.socket(fileno=descriptor)
        streams, request = _received(client)
        if not request:
            client.close()
            return None
        if self._variables is None:
            self._prepare()
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            self._workers.append(ForkedWorker(pid, os.pidfd_open(pid), client))
            return None
        self._listening.close()
        client.close()
        for worker_process in self._workers:
            worker_process.client.close()
            os.close(worker_process.ended)
        return self._begin(streams, *marshal.loads(request))

    def _prepare(self) -> None:
        before = dict(os.environ)
        gc.disable()  # as in a normal worker
        if self._kind == "command":
            _import_commands()
        else:
            from trtbuild.driver.workers import handlers

            handlers.prepare(self._kind)
        if self._kind == "torch":
            _warm_up()
        gc.freeze()
        gc.enable()
        self._variables = {name: value for name, value in os.environ.items() if before.get(name) != value}

    def _begin(
        self, streams: list[int], directory: str, arguments: list[str], environment: dict[str, str]
    ) -> list[str]:
        """Take over the streams, directory, variables and arguments of the client. Returns the arguments."""
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


def _import_commands() -> None:
    """Import every module that a command may need, except torch and the libraries of engines."""
    import importlib
    import pkgutil
    import threading

    import trtbuild.cli
    import trtbuild.driver

    for package in (trtbuild.cli, trtbuild.driver):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    del sys.modules["trtbuild.cli.main"]  # runpy would warn if the module that it runs were loaded
    if "torch" in sys.modules or threading.active_count() > 1:
        raise AssertionError("the modules of commands import torch or start a thread")


def _run_command(main: str, folder: str, arguments: list[str]) -> None:
    """Run the module `main` of trtbuild in this process. Its workers are forked from the servers in `folder`."""
    import time

    from tests.warm.command_line import replace_command
    from trtbuild import null_build
    from trtbuild.driver.workers import pool

    replace_command(pool, lambda: folder)
    null_build.STARTED_NS = time.time_ns()
    sys.path[0] = os.path.dirname(sys.executable) if main == "trtbuild.__main__" else os.getcwd()  # noqa: PTH109
    sys.argv[1:] = arguments
    runpy.run_module(main, run_name="__main__", alter_sys=True)


def _warm_up() -> None:
    """Lower, write, read and convert a program, because torch and onnxscript fill their tables at the first use.

    A worker that is used again has these tables, too. TensorRT is not loaded, and no thread stays (rule 2).
    """
    import threading

    import torch
    from tqdm import tqdm

    from trtbuild.stages.convert.conversion import convert
    from trtbuild.stages.lower.run import lower
    from trtbuild.stages.program import consistency
    from trtbuild.stages.program.functional import functional
    from trtbuild.stages.program.text import program_text
    from trtbuild.stages.program.translations import decomposition_table

    interval_s, tqdm.monitor_interval = tqdm.monitor_interval, 0  # otherwise tqdm starts a thread
    rows = {"input": {0: torch.export.Dim("rows", min=2, max=8)}}
    with torch.no_grad():
        exported = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(4, 2),), dynamic_shapes=rows)
        traced, _ = functional(exported)
        lowered = lower(consistency.read_program(traced.to_bytes()), "float32", decomposition_table())
        program_text(lowered)
        convert(consistency.read_program(lowered.to_bytes()), 20)
    tqdm.monitor_interval = interval_s
    if threading.active_count() > 1:
        raise AssertionError("a thread runs in a server of workers")


def _received(client: Any) -> tuple[list[int], bytes]:
    """The descriptors and the bytes that a client sends. No bytes if the client has ended."""
    streams: list[int] = []
    request = b""
    size = None
    while size is None or len(request) < size:
        part, more, _, _ = client.recvmsg(1 << 16, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
        if not part:
            return streams, b""
        for _, _, data in more:
            streams += [int.from_bytes(data[start : start + 4], sys.byteorder) for start in range(0, len(data), 4)]
        request += part
        if size is None:
            size, request = int.from_bytes(request[:4], sys.byteorder), request[4:]
    return streams, request


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # before `setsid`, a worker has no process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


is_command = sys.argv[1] == "command"  # a forked process replaces sys.argv
arguments = Server(sys.argv[1], int(sys.argv[2])).run()
if arguments is not None and is_command:
    _run_command(*arguments[:2], arguments[2:])
elif arguments is not None:
    sys.exit(worker.main(arguments))
