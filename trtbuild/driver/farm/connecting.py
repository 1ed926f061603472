"""Connects to the scheduler at an address, or to a new scheduler that this process starts on 127.0.0.1."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.driver.configuration import WorkersSettings
from trtbuild.driver.farm import addresses
from trtbuild.driver.farm.addresses import LocalWorkers, SchedulerAddress
from trtbuild.driver.farm.processes import processes_here
from trtbuild.errors import EnvironmentFault

if TYPE_CHECKING:
    from distributed import Client, SpecCluster
    from distributed.security import Security

#: The seconds in which a scheduler has to answer.
CONNECT_TIMEOUT_S = 10.0

#: When the worker of a task dies, a local scheduler starts the task again, but only this many times. After one more
#: death, the task fails.
_ALLOWED_DEATHS = 2


@contextlib.contextmanager
def connect(text: str, settings: WorkersSettings, project: Path) -> Iterator[Client]:
    """A connection to the scheduler at the address `text`. For ``local:N``, a scheduler and workers are started first.

    Raises UsageError or EnvironmentFault."""
    address = addresses.parse(text)
    addresses.prepare_dask()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the build itself reports problems of workers
    if isinstance(address, SchedulerAddress):
        security = addresses.security(address, settings)
        with _client(str(address), security) as client:
            yield client
        return
    from distributed.security import Security

    temporary = Security.temporary()  # a new certificate, so that other users of this host cannot connect
    with (
        contextlib.closing(_local_cluster(address, project, temporary)) as cluster,
        _client(cluster.scheduler_address, temporary) as client,
    ):
        yield client


@contextlib.contextmanager
def _client(address: str, security: object | None = None) -> Iterator[Client]:
    try:
        client = _connect(address, security)
    except Exception as error:  # Dask raises many types: OSError, TimeoutError, and errors about a strange answer
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise EnvironmentFault(
            f"the scheduler {address} cannot be used: {reason}",
            hint="check that it runs, that its version of Dask is near this one, and that it accepts this certificate",
        ) from error
    try:
        yield client
    finally:
        _close(client)


def _connect(address: str, security: object | None) -> Client:
    """Connect in a thread, because Dask waits forever after some answers of a server that is not a scheduler.

    If the connection fails or comes too late, the thread closes the client, so that the garbage collector never has to. The
    collector may run in the thread of another client's event loop, where closing can cause a deadlock: closing waits
    for a lock that the start of the other client may hold, and this start waits for the event loop of the same thread.
    """
    from distributed import Client

    answer: Future[Client] = Future()

    def start_client() -> None:
        client = Client.__new__(Client)  # so that a client whose __init__ fails can be closed
        try:
            Client.__init__(
                client, address, security=security, timeout=CONNECT_TIMEOUT_S, set_as_default=False, name="trtbuild"
            )
        except Exception as error:
            _close(client)
            with contextlib.suppress(InvalidStateError):  # the caller has stopped waiting
                answer.set_exception(error)
            return
        try:
            answer.set_result(client)
        except InvalidStateError:
            _close(client)

    threading.Thread(target=start_client, name="trtbuild-connect", daemon=True).start()
    try:
        return answer.result(timeout=CONNECT_TIMEOUT_S + 2)
    except concurrent.futures.TimeoutError:  # another type than TimeoutError before Python 3.11
        if answer.cancel():
            raise TimeoutError("it does not answer as a Dask scheduler does") from None
        return answer.result()  # the answer came at the last moment, or this is Dask's own TimeoutError


def _close(client: Client) -> None:
    with contextlib.suppress(Exception):  # the connection may be lost already
        client.close(timeout=2)
        client._loop_runner.stop(timeout=2)  # after a timeout, close() leaves the event loop running


def _local_cluster(address: LocalWorkers, project: Path, security: Security) -> SpecCluster:
    """A scheduler in this process, and worker processes. They listen on 127.0.0.1 only."""
    import dask
    from distributed import Nanny, Scheduler, SpecCluster

    dask.config.set({"distributed.scheduler.allowed-failures": _ALLOWED_DEATHS})
    workers = {
        process.name: {"cls": Nanny, "options": process.options("127.0.0.1", security, log_level=logging.CRITICAL)}
        for process in processes_here(project, address.count, 1)
    }
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options.update(protocol="tls://", security=security)
    before = dict(os.environ)
    cluster = SpecCluster(
        workers, {"cls": Scheduler, "options": options}, security=security, silence_logs=logging.CRITICAL
    )
    # Dask has set the workers' environment variables in this process, too, even existing ones such as PYTHONHASHSEED
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    return cluster
