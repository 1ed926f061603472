"""``server_process.py TRACE TORCH``: a process that has loaded torch, and forks the workers that need it.

TRACE and TORCH are the numbers of the sockets through which the server receives the connections of clients (`client.py`).
In `trtbuild watch`, trace workers may also have imported the libraries of a model (`preloading`).

Rules
1. A forked worker behaves like a new one:
   * From its client it gets the streams, the environment variables, the directory, the umask and the arguments.
   * From the server it gets resource limits, priority, groups, processors and namespaces. In a build, server and client
     have the same parent. A watcher compares these properties, except the priority, with those of the `trtbuild build`
     process that asks for a build (`trtbuild.driver.watching.endpoint`).
   * Python and torch read environment variables while they start: the seed of hashes, the locale, ``OMP_NUM_THREADS``,
     ``LD_LIBRARY_PATH``. So the variables of server and client must be equal (exceptions: `ForkServers.can_fork`).
   * It has the modules that `handlers.prepare` loads, with their warning filters and exit functions. A new worker loads
     them, too, before its first job. The server handles no signal, and blocks no signal.
   * A forked torch worker also has the tables that a new one fills during its first job (`handlers.fill_tables`).
   * Import caches are cleared. No other cache of the server has an entry about the project. The processes of `preloading`
     have searched the project for imports, so they have other rules.
   * The server may have threads of libraries that handle a fork, such as OpenBLAS, but no others. A trace worker that was
     not forked has such threads, too, when it forks for a job.
2. The server runs no user code, and only its main thread runs Python. A copy of the server loads the modules of torch
   workers, and forks these workers. So a trace worker never has modules that only torch workers need. Otherwise a
   trace would record these modules as dependencies.
3. Each worker starts a new session (`setsid`). When its client ends, the worker and the processes in its process group are
   killed. When the worker ends, these processes are killed, too, and the client receives the exit status.
4. A worker does not have the server's descriptors.
5. When standard input ends, the server and its workers end. Standard input is a pipe, and the owner of the server has its
   other end. If the owner is killed, the kernel closes that end. The server does not end when the thread that has
   started it ends.
6. If the server has loaded CUDA's driver, it forks no worker that may use a GPU, because the driver does not work after a
   fork. The client then becomes a new worker.
7. A trace records the modules that were loaded before torch. So this file imports only modules that a worker also loads
   before torch.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy  # noqa: F401 (also a worker that is started with -m has loaded it)
import select
import sys
from collections.abc import Callable
from typing import Any

from trtbuild.driver.workers.forking.requests import receive_client, set_arguments, set_environment
from trtbuild.driver.workers.forking.server import ForkServer


def load(prepare: Callable[[], None]) -> dict[str, str]:
    """Load libraries with `prepare`. Returns the environment variables that they have set.

    An error is ignored, because the first job of a worker fails in the same way, and reports it.
    """
    before = dict(os.environ)
    gc.disable()  # imported modules are not garbage, so collections would only slow down the import of torch
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
    """Wait for the first client, or for the end of the owner. `arrivals` is the number of a socket."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    watched.register(arrivals, select.POLLIN)
    watched.poll()


def main(trace: int, torch: int) -> int:
    """Load torch, then fork trace workers. A copy of this process forks torch workers.

    `trace` and `torch` are the numbers of the sockets of both servers. Returns only in a forked worker: its exit status.
    """
    from trtbuild.driver.workers import worker

    worker.__name__ = "__main__"  # `worker` is the main module of a worker process
    this_module = sys.modules["__main__"]  # keeps the module alive
    sys.modules["__main__"] = sys.modules.pop("trtbuild.driver.workers.worker")
    from trtbuild.driver.workers import handlers

    set_by_libraries = load(handlers.prepare_trace)
    torch_server = os.fork()
    serves_torch = torch_server == 0
    os.close(trace if serves_torch else torch)
    if serves_torch:
        worker.end_with_parent()
        _wait_for(torch)
        set_by_libraries |= load(handlers.prepare_torch)
        if _has_owner():  # otherwise the build has ended, and waits for the end of its servers
            set_by_libraries |= load(handlers.fill_tables)
        server = ForkServer(torch, receive_client, uses_gpu=True)
    else:
        from trtbuild.driver.workers.forking.preloading import TraceServer

        server = TraceServer(trace, set_by_libraries)
    started = server.serve()
    if started is None:
        if not serves_torch:
            os.waitpid(torch_server, 0)
        os._exit(0)  # a normal exit would take longer, because Python would free all modules
    del this_module
    command, environment = started
    if not server.has_environment:
        set_environment(environment, set_by_libraries)
    return run_worker(command, environment, is_trace=not serves_torch)


def run_worker(command: list[str], environment: dict[str, str], *, is_trace: bool) -> int:
    """Run a forked worker. `environment` are the variables of its client."""
    worker: Any = sys.modules["__main__"]
    set_arguments(command)
    if is_trace:
        from trtbuild.stages.trace.run import note_environment

        with contextlib.suppress(Exception):  # torch cannot be loaded, as in `load`
            note_environment(environment)
    importlib.invalidate_caches()  # otherwise a file added within one tick of the file system's clock is not found
    status: int = worker.main(command[-3:])
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
