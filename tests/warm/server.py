"""``server.py KIND DESCRIPTOR``: a server that loads modules once, and forks processes that have these modules.

KIND is a kind of workers (`command_line.KINDS`), or ``command`` for commands of trtbuild. DESCRIPTOR is the number of the
listening socket.

Rules
1. A worker behaves like a worker of `trtbuild.driver.workers.forking.server_process`. Rules 1 and 3 to 5 of that module
   also hold here.
2. A server loads its modules at the first request. It runs no user code, and only its main thread runs Python. So a worker
   has no state of an earlier job.
   * The servers of trace and torch workers load torch. The server of torch workers also lowers and converts a small
     program.
   * The server of engine workers loads their modules, but not TensorRT, which a job loads.
   * The server of commands loads the modules of all commands. A forked command runs ``trtbuild.__main__`` as the console
     script does, and other modules as ``python -m`` does.
3. A trace records the modules that were loaded before torch. So this file imports only modules that a worker also loads
   before torch.
"""

from __future__ import annotations

import _socket
import os
import runpy  # a worker that is started with -m has loaded this module, too
import sys
from typing import Any

from trtbuild.driver.workers.forking import requests, server_process
from trtbuild.driver.workers.forking.server import ForkServer

if sys.argv[1] != "command":
    from trtbuild.driver.workers import worker

    #: The main module of a worker process is the module `worker`.
    worker.__name__ = "__main__"
    _this = sys.modules["__main__"]  # keeps the module alive
    sys.modules["__main__"] = sys.modules.pop("trtbuild.driver.workers.worker")


class Server(ForkServer):
    """A server whose owner created the listening socket. So clients can connect before the server has loaded modules."""

    def __init__(self, kind: str, listening: int) -> None:
        super().__init__(listening, self._next)
        self._kind = kind
        #: The environment variables that libraries have set. None before the libraries are loaded.
        self.set_by_libraries: dict[str, str] | None = None

    def _next(self, listening: int) -> Any:
        """Wait for the next client. Returns its connection."""
        server = _socket.socket(fileno=listening)
        descriptor, _ = server._accept()
        server.detach()
        if self.set_by_libraries is None:
            self.set_by_libraries = server_process.load(self._prepare)
        return _socket.socket(fileno=descriptor)

    def _prepare(self) -> None:
        if self._kind == "command":
            _import_commands()
            return
        from trtbuild.driver.workers import handlers

        handlers.prepare(self._kind)
        if self._kind == "torch":
            handlers.fill_tables()
            _import_packages("trtbuild.stages.verify", "trtbuild.toolchain.compiling")
        elif self._kind == "engine":
            _import_packages("trtbuild.driver.workers", "trtbuild.toolchain.compiling", "trtbuild.store")


def _import_packages(*names: str) -> None:
    import importlib
    import pkgutil

    for name in names:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)


def _import_commands() -> None:
    """Import the modules of commands, but neither torch nor TensorRT."""
    import threading

    _import_packages("trtbuild.cli", "trtbuild.core", "trtbuild.driver", "trtbuild.manifest", "trtbuild.store")
    del sys.modules["trtbuild.cli.main"]  # runpy would warn if the module that it runs were loaded
    if "torch" in sys.modules or threading.active_count() > 1:
        raise AssertionError("the modules of commands import torch or start a thread")


def _run_command(main: str, folder: str, arguments: list[str]) -> None:
    """Run the module `main` of trtbuild in this process, with workers from the servers in `folder`."""
    import time

    from tests.warm.command_line import replace_command
    from trtbuild import null_build

    replace_command(lambda: folder)
    null_build.STARTED_NS = time.time_ns()
    sys.path[0] = os.path.dirname(sys.executable) if main == "trtbuild.__main__" else os.getcwd()  # noqa: PTH109
    sys.argv[1:] = arguments
    runpy.run_module(main, run_name="__main__", alter_sys=True)


is_command = sys.argv[1] == "command"  # a forked process replaces sys.argv
is_trace = sys.argv[1] == "trace"
server = Server(sys.argv[1], int(sys.argv[2]))
request = server.serve()  # None in the server, when it ends
if request is not None:
    command, environment = request
    requests.set_environment(environment, server.set_by_libraries or {})
    if is_command:  # PYTHON …/command_line.py MODULE FOLDER …
        _run_command(*command[2:4], command[4:])
    else:
        sys.exit(server_process.run_worker(command, environment, is_trace=is_trace))
